"""Training tools: everything that learns from the target's own answers.

    corpus     the target answers prompts; answers, hidden states and log-probs are kept
    drafter    a block drafter learns to foresee them; see drafter_training
    export     the drafter as ONNX graphs

It stands above the server's packages and is imported by none of them.
"""
