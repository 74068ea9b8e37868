"""What a step costs on this machine: the measured profile and its correction while serving."""
