"""Workflows: named tools in dependency order; results flow from step to step and survive a kill.

    agent = ResearchAgent({"search": search, "save": save})
    result = await agent.execute_workflow(Workflow("papers", "find and keep", [
        WorkflowStep("find", "search", {"query": "merge queues"}),
        WorkflowStep("keep", "save", {"papers": "${find.papers}"})]))

`executor` compiles a workflow to a graph and runs it on the pipeline engine, whose journal is the source of truth;
`workflows/ID.json` is a snapshot for people and programs. `references` (links between steps) and `validation` are
pure. Tools are Python callables (`python_tools`), built in (`builtin_tools`), or those of MCP servers (`mcp_tools`).
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
