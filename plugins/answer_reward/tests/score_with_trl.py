"""Scores pairs of reference and completion with TRL's accuracy_reward: reads JSON lines [reference, completion, ...] and writes
[reference, completion, score]. Needs trl with math_verify 0.9. Usage: score_with_trl.py < pairs.jsonl > math_verify.jsonl"""

import json
import sys

from trl.rewards import accuracy_reward

for line in sys.stdin:
    reference, completion, *_ = json.loads(line)
    (score,) = accuracy_reward([[{"role": "assistant", "content": completion}]], [reference])
    print(json.dumps([reference, completion, score], ensure_ascii=False))
