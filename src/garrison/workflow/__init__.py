"""Workflows: named tools in dependency order, with results that flow from step to step, kept through any death.

    agent = ResearchAgent({"search": search, "save": save})
    result = await agent.execute_workflow(Workflow("papers", "find and keep", [
        WorkflowStep("find", "search", {"query": "merge queues"}),
        WorkflowStep("keep", "save", {"papers": "${find.papers}"})]))

The rules of this room: a workflow is compiled to a graph (`compile`) and run by the pipeline engine, whose journal is
the truth; `state/workflows/ID.json` is a snapshot of it for people and programs. What refers to what (`references`),
what is wrong with a workflow (`validate`) and what it means as a graph are pure. Tools are Python callables, or those
of any MCP server (`mcp_tools`), which nobody else imports.
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
