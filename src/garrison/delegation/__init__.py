"""Delegation: a front agent answers a person, or lets specialists of its crew work and folds their results in.

    async with AgentOrchestrator(crew, Conversation(folder)) as desk:
        async for event in desk.stream("What died since yesterday?"):
            ...

The rules of this room: what may follow what is decided in `states`, `events`, `context`, `times` and `classify`, all
pure; `orchestrator` alone asks sessions, through an agent graph in which the butler directs its specialists. Who the
specialists are, what they are told and with which tools stands in files (`crew`), never in code. A specialist that
fails or takes too long is a result like any other. What a specialist gets is made for it alone: agents share nothing
that can change.
"""
