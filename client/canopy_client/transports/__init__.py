"""gRPC and HTTP behind one interface."""
