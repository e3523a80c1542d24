"""The run controller: from a workflow and its inputs to finished steps.

`graph` decides what may start (pure), `plan` resolves expressions (pure), `live` remembers a run
that is under way, `steps` makes one step true, `controller` ties them together.
"""
