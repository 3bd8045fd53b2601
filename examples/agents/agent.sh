#!/usr/bin/env bash
# The agent of agent.py in bash, with curl and jq.
set -euo pipefail

turns=3 found=0
messages=$(jq -c '[{role: "user", content: .prompt}]')
for ((turn = 0; turn < turns; turn++)); do
    # The address and the key of this episode are in the environment.
    said=$(jq -nc --argjson messages "$messages" '{model: "policy", $messages, max_tokens: 16}' |
        curl --silent --fail-with-body "$OPENAI_BASE_URL/chat/completions" --data @- \
            --header "Content-Type: application/json" --header "Authorization: Bearer $OPENAI_API_KEY" | jq -c '.choices[0].message')
    page=$(jq -r '.content' <<< "$said" | grep --only-matching --max-count 1 '[0-9]\+' | head --lines 1 || true)
    if [ -n "$page" ]; then found=$((found + 1)) result="page $page is about cats"; else result="no page has that name"; fi
    messages=$(jq -c --argjson said "$said" --arg result "$result" '. + [$said, {role: "user", content: $result}]' <<< "$messages")
done
jq -nc --argjson found "$found" --argjson turns "$turns" '{reward: ($found / $turns), metrics: {pages: $found}}'
