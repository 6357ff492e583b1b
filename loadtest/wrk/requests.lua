-- The requests of one workload: wrk ... -s requests.lua URL -- KIND BYTES TAG [COUNT]
--
--   unique    a completion whose prompt of BYTES shares nothing with any other
--   shared    a completion: BYTES shared by all requests of one of 64 groups, then a tail of 512 bytes of its own
--   stream    as unique, streamed, with COUNT tokens to generate
--   chat      a chat of COUNT messages, BYTES in all, the first of them unique
--
-- TAG makes prompts unique over runs: it stands, with a thread number and a counter, at the start of each prompt, so
-- that nothing after it can match either. All else is made once, before the clock runs.

local GROUPS, TAIL = 64, 512
local threads = 0

function setup(thread)
  threads = threads + 1
  thread:set("thread_number", threads)
end

-- Prose-like text of exactly `bytes` bytes that needs no escapes in JSON.
local function text(bytes, seed)
  local words, length, n = {}, 0, seed
  while length < bytes do
    n = (n * 1103515245 + 12345) % 2147483648
    local word = string.format("w%x ", math.floor(n / 1024) % 8192)
    words[#words + 1] = word
    length = length + #word
  end
  return table.concat(words):sub(1, bytes)
end

local function chat_rest(messages, bytes)
  local each = math.floor(bytes / messages)
  local parts = {}
  for i = 2, messages do
    local role = i % 2 == 0 and "assistant" or "user"
    parts[#parts + 1] = string.format(',{"role":"%s","content":"%s"}', role, text(each, i))
  end
  return text(each, 1) .. '"}' .. table.concat(parts) .. "]"
end

function init(args)
  local kind, bytes, tag, count = args[1], tonumber(args[2]), args[3], tonumber(args[4] or "1")
  local counter, open, rests, path = 0, nil, {}, "/v1/completions"
  if kind == "chat" then
    path = "/v1/chat/completions"
    open = '{"model":"sim","max_tokens":1,"messages":[{"role":"user","content":"'
    rests[1] = chat_rest(count, bytes) .. "}"
  else
    local stream = kind == "stream" and "true" or "false"
    open = string.format('{"model":"sim","max_tokens":%d,"stream":%s,"prompt":"', count, stream)
    rests[1] = text(math.max(bytes - 32, 0), 1) .. '"}'
  end
  local groups = {}
  if kind == "shared" then
    for i = 0, GROUPS - 1 do groups[i] = text(bytes, 1000 + i) end
    rests[1] = text(TAIL - 32, 1) .. '"}'
  end

  local function body()
    counter = counter + 1
    local mark = string.format("%s-%02d-%012d-----------------------", tag, thread_number, counter):sub(1, 32)
    local group = groups[counter % GROUPS] or ""
    return open .. group .. mark .. rests[1]
  end

  local head = string.format(
    "POST %s HTTP/1.1\r\nHost: loadtest\r\nContent-Type: application/json\r\nContent-Length: %%d\r\n\r\n", path)
  local length = #body()
  head = string.format(head, length)
  function request() return head .. body() end
end

function done(summary, latency)
  local e = summary.errors
  io.write(string.format(
    'RESULT {"requests":%d,"duration_us":%d,"bytes":%d,"p50_us":%d,"p90_us":%d,"p99_us":%d,"max_us":%d,' ..
    '"bad_status":%d,"broken":%d}\n',
    summary.requests, summary.duration, summary.bytes, latency:percentile(50), latency:percentile(90),
    latency:percentile(99), latency.max, e.status, e.connect + e.read + e.write + e.timeout))
end
