"""Pipelines: text to graph to plan, and where a run of it goes next.

The rules of this room:

* Everything here but reading a file is pure: no clock, process or randomness, and garrison never writes a graph's file.
* The text is taken whole or refused with line and column (`parser`); nothing is guessed or left out.
* A graph never changes. Attributes are kept as written; their type comes from who asks (`graph`).
* What is wrong with a graph is a finding (`lint`); what this version will not run is a refusal before it costs
  anything (`launch`); where a run goes next is decided from a plan and a mapping of statuses alone (`routing`).
* Lark is loaded when the first text is read, so that importing this room stays cheap.
"""
