"""Workflows: tool calls in dependency order; results flow from step to step and survive a crash.

    agent = ResearchAgent({"search": search, "save": save})
    result = await agent.execute_workflow(Workflow("papers", "find and keep", [
        WorkflowStep("find", "search", {"query": "merge queues"}),
        WorkflowStep("keep", "save", {"papers": "${find.papers}"})]))

A workflow is compiled to a graph and run by the pipeline engine (`executor`), whose journal is authoritative;
`state/workflows/ID.json` is a snapshot of it for users and programs. References between steps (`references`) and the
checks before a run (`validation`) are pure. Tools are Python callables, or those of any MCP server (`mcp_tools`, the
only module that loads the MCP client).
"""

from garrison.workflow.agent import AgentConfig, ResearchAgent, WorkflowAgent
from garrison.workflow.errors import (
    AgentError,
    StateLoadError,
    ToolNotFoundError,
    WorkflowExecutionError,
    WorkflowValidationError,
)
from garrison.workflow.executor import WorkflowExecutor
from garrison.workflow.models import StepStatus, Workflow, WorkflowResult, WorkflowState, WorkflowStep
from garrison.workflow.state_manager import StateManager

__all__ = ["AgentConfig", "AgentError", "ResearchAgent", "StateLoadError", "StateManager", "StepStatus",
           "ToolNotFoundError", "Workflow", "WorkflowAgent", "WorkflowExecutionError", "WorkflowExecutor",
           "WorkflowResult", "WorkflowState", "WorkflowStep", "WorkflowValidationError"]
