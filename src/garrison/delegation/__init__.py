"""Delegation: a front agent answers the user, alone or with the results of specialists.

    async with AgentOrchestrator(crew, Conversation(folder)) as butler:
        async for event in butler.stream("What died since yesterday?"):
            ...

State transitions, the order of events, contexts, time phrases and prompts are pure (`models`, `prompts`,
`time_phrases`); only `butler` calls models, through an agent graph in which the butler directs its specialists.
Specialists, their prompts and tools are defined in files (`specialists`), never in code. A specialist that fails or
times out is a result like any other. Each specialist gets its own context: agents share no mutable state.
"""
