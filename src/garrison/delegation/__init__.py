"""Delegation: a butler that answers a person with the help of specialists.

    async with AgentOrchestrator(crew, Conversation(folder)) as butler:
        async for event in butler.stream("What died since yesterday?"):
            ...

`butler` asks the sessions, through an agent graph in which it directs its specialists; `events`, `context`, `prompts`,
`models` and `time_phrases` decide and are pure. `specialists` reads the crew, its prompts and its tools from files. A
specialist that fails or takes too long is a result like any other. Agents share no mutable state.
"""
