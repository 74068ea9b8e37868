// The wire: the gateway's OpenAI-compatible chat, streamed, with the trace of every round.

export class RequestFailed extends Error {}

/** The name of the model that is served. Throws RequestFailed. */
export async function modelName(apiKey) {
  const response = await request("v1/models", { headers: headersOf(apiKey) });
  return (await response.json()).data[0].id;
}

/** Yields {text, rounds, finishReason} of one answer, piece by piece.
 *  Throws RequestFailed with a text for people, and AbortError when `signal` fires. */
export async function* streamChat(body, apiKey, signal) {
  const asked = { ...body, stream: true, trace: true };
  const response = await request("v1/chat/completions", {
    method: "POST", headers: headersOf(apiKey), body: JSON.stringify(asked), signal,
  });
  for await (const data of readEvents(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new RequestFailed(event.error.message);
    const [choice] = event.choices;
    if (choice) {
      const text = (choice.delta.reasoning_content ?? "") + (choice.delta.content ?? "");
      yield { text, rounds: choice.rounds ?? [], finishReason: choice.finish_reason };
    }
  }
  throw new RequestFailed("The connection closed before the answer ended.");
}

function headersOf(apiKey) {
  const headers = { "Content-Type": "application/json" };
  return apiKey ? { ...headers, Authorization: `Bearer ${apiKey}` } : headers;
}

async function request(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : new RequestFailed("The gateway cannot be reached.");
  }
  if (!response.ok) throw new RequestFailed(await failureText(response));
  return response;
}

async function failureText(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The gateway answered ${response.status}.`;
  }
}

/** The data of server-sent events, as they come. */
async function* readEvents(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    pending += value;
    const blocks = pending.split("\n\n");
    pending = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith("data: ")) yield block.slice(6);
    }
    await rest();
  }
}

/** Let clicks, keys and drawing have their turn: a stream that is always ahead would leave none. */
function rest() {
  return new Promise((resolve) => setTimeout(resolve));
}
