"""What users need to test their own pipelines; the scripted agent (`garrison.agents.scripted`) is the first of it."""
