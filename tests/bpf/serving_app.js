// The program of serving_app.py for Node's http.
const http = require("http");

const rest = (seconds) => new Promise((done) => setTimeout(done, 1000 * (seconds || 0)));
const usage = (tokens) => ({ prompt_tokens: 11, total_tokens: 11 + tokens, completion_tokens: tokens });
const event = (data) => `data: ${JSON.stringify(data)}\n\n`;

function whole(response, status, body) {
  response.writeHead(status, { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(body) });
  response.end(body);
}

async function stream(response, wanted) {
  let gone = false;
  response.on("close", () => (gone = true));
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  await rest(wanted.first);
  for (let number = 0; number < wanted.tokens && !gone; number++) {
    if (number) await rest(wanted.gap);
    response.write(event({ model: "tiny", choices: [{ index: 0, delta: { content: ` ${number}` } }], usage: null }));
  }
  response.write(event({ model: "tiny", choices: [], usage: usage(wanted.tokens) }));
  response.end("data: [DONE]\n\n");
}

async function answer(request, response) {
  let body = "";
  for await (const part of request) body += part;
  if (request.method !== "POST") return whole(response, 200, "ok");
  const wanted = JSON.parse(body);
  if ((wanted.status || 200) !== 200) return whole(response, wanted.status, '{"error": {"message": "no"}}');
  if (wanted.stream) return stream(response, wanted);
  await rest(wanted.first);
  const message = { role: "assistant", content: "word ".repeat(wanted.tokens) };
  return whole(response, 200, JSON.stringify({ model: "tiny", choices: [{ message }], usage: usage(wanted.tokens) }));
}

http.createServer((request, response) => answer(request, response).catch(() => response.destroy())).listen(Number(process.argv[2]), "127.0.0.1");
