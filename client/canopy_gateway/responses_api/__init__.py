"""OpenAI's Responses API over the same chats: its requests, its items, its events."""
