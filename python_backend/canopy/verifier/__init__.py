"""The model `verifier`: schedules rows, runs the target, accepts trees and commits their KV."""
