// The agent of agent.py in JavaScript, for Node without packages.

const TURNS = 3;

// Asks the policy; the address and the key of this episode are in the environment.
async function chat(messages) {
  const reply = await fetch(process.env.OPENAI_BASE_URL + "/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: "Bearer " + process.env.OPENAI_API_KEY },
    body: JSON.stringify({ model: "policy", messages, max_tokens: 16 }),
  });
  if (!reply.ok) throw new Error(await reply.text());
  return (await reply.json()).choices[0].message;
}

let input = "";
for await (const part of process.stdin) input += part;
const messages = [{ role: "user", content: JSON.parse(input).prompt }];
let found = 0;
for (let turn = 0; turn < TURNS; turn++) {
  const said = await chat(messages);
  const page = said.content.match(/[0-9]+/);
  if (page) found++;
  messages.push(said, { role: "user", content: page ? `page ${page[0]} is about cats` : "no page has that name" });
}
console.log(JSON.stringify({ reward: found / TURNS, metrics: { pages: found } }));
