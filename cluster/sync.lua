-- One instance's exchange with its fleet, for one target; see docs/cluster.md. It is applied at most once: what carries a number of an
-- exchange that the slot has seen already adds nothing.
--
-- KEYS 1-4 counts of a slot, 5-8 who has reported in it, 9 circuit, 10 right to probe, 11 retry budget.
-- ARGV 1 instance, 2 number of the exchange, 3 interval in ms, 4 epoch, 5 what becomes of the right to probe (renew, want,
-- pass, leave, -),
-- 6 its lease in ms, 7-13 budget in thousandths of a token: capacity, initial, income a second, reserve, earned, wanted, given up;
-- 14 number of fields, then their names and values: those of x stand as they are, all others are of the epoch.
local most = 1e15
local junk = 0
local function number(s) -- a whole number from 0 to most; anything else is nobody's
  if not s then return 0 end
  if not string.match(s, '^%d+$') or #s > 16 then junk = junk + 1 return 0 end
  return math.min(tonumber(s), most)
end
local function whole(n) return string.format('%.0f', math.max(0, math.min(math.floor(n), most))) end
local function need(key, kind) -- a key of another type is not ours
  local t = redis.call('TYPE', key).ok
  if t ~= 'none' and t ~= kind then redis.call('DEL', key) junk = junk + 1 end
end

local function exchange()
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local me, seq, interval, epoch = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
  local slot = math.floor(now / interval)
  local life = math.max(20 * interval, 1000)

  -- Counts.
  local counts, members = KEYS[slot % 4 + 1], KEYS[slot % 4 + 5]
  if redis.call('HGET', counts, '#') ~= whole(slot) then
    redis.call('DEL', counts, members)
    redis.call('HSET', counts, '#', whole(slot), 'e', whole(epoch))
  end
  local before = redis.call('HGET', members, me)
  local new = before ~= seq
  if new then
    redis.call('HSET', members, me, seq)
    local known = redis.call('HGET', counts, 'e')
    local theirs = number(known)
    if theirs > epoch + 4294967296 then theirs = -1 end -- no circuit changes as often
    if epoch > theirs then
      for _, f in ipairs(redis.call('HKEYS', counts)) do
        if string.sub(f, 1, 1) ~= 'x' and f ~= '#' then redis.call('HDEL', counts, f) end
      end
      redis.call('HSET', counts, 'e', whole(epoch))
    end
    local names, values = {}, {}
    for i = 15, 14 + 2 * tonumber(ARGV[14]), 2 do
      local f = ARGV[i]
      local own = string.sub(f, 1, 1) == 'x'
      -- What is true of a moment counts once for each instance.
      local once = f == 'xg' or f == 'xn' or f == 'xp' or f == 'o' or f == 'q'
      if (own or epoch >= theirs) and not (once and before) then
        names[#names + 1], values[#values + 1] = f, ARGV[i + 1]
      end
    end
    if #names > 0 then
      local old = redis.call('HMGET', counts, unpack(names))
      local set = {}
      for i, f in ipairs(names) do
        set[#set + 1] = f
        set[#set + 1] = whole(number(old[i]) + number(values[i]))
      end
      redis.call('HSET', counts, unpack(set))
    end
  end
  redis.call('PEXPIRE', counts, life)
  redis.call('PEXPIRE', members, life)
  local last = KEYS[(slot - 1) % 4 + 1]
  local sum, mine = '', 0
  if redis.call('HGET', last, '#') == whole(slot - 1) then
    if redis.call('HLEN', last) > 1000 then -- there are not as many names
      redis.call('DEL', last)
      junk = junk + 1
    else
      sum = table.concat(redis.call('HGETALL', last), ' ')
      if #sum > 32768 then
        redis.call('DEL', last)
        sum = ''
        junk = junk + 1
      end
      mine = redis.pcall('HEXISTS', KEYS[(slot - 1) % 4 + 5], me)
      if type(mine) ~= 'number' then mine = 0 end
    end
  end

  -- Circuit: the number of its transitions only grows.
  local circuit, right = KEYS[9], KEYS[10]
  local state = redis.call('HMGET', circuit, 'epoch', 'owner', 'holder', 'until')
  local newest = number(state[1])
  local owner = state[2] or ''
  if newest > epoch + 4294967296 then newest = 0 junk = junk + 1 end
  if not state[1] then
    -- A store that has just been emptied does not know who has the right.
    redis.call('SET', right, '-', 'PX', ARGV[6], 'NX')
  end
  if epoch > newest or not state[1] or newest == 0 and state[1] ~= '0' then
    newest, owner = epoch, me
    redis.call('HSET', circuit, 'epoch', whole(epoch), 'owner', me, 'since', whole(now))
  end
  redis.call('PEXPIRE', circuit, 3600000)
  local term = tonumber(ARGV[6])
  local holder = redis.call('GET', right)
  if holder then
    local left = redis.call('PTTL', right)
    if left < 0 or left > 10 * term or #holder > 64 then -- nobody's who would give it up
      redis.call('DEL', right)
      holder = false
      junk = junk + 1
    end
  end
  if not holder and state[3] and #state[3] <= 64 then -- a key that was evicted ends no right: it has the time that it had
    local left = number(state[4]) - now
    if left > 0 and left <= term then
      holder = state[3]
      redis.call('SET', right, holder, 'PX', left)
    end
  end
  local act = ARGV[5]
  if act == 'pass' then -- to whoever has asked for it of late
    act = 'leave'
    local w = redis.call('HMGET', circuit, 'waits', 'asked')
    if holder == me and (not w[1] or w[1] == me or now - number(w[2]) > 2 * interval) then
      holder = false
      act = 'want'
    end
  end
  if act == 'renew' or act == 'want' then
    if not holder or holder == me and act == 'renew' then
      redis.call('SET', right, me, 'PX', term)
      redis.call('HSET', circuit, 'holder', me, 'until', whole(now + term))
      holder = me
    elseif holder ~= me then
      redis.call('HSET', circuit, 'waits', me, 'asked', whole(now))
    end
  elseif act == 'leave' and holder == me then
    redis.call('DEL', right)
    redis.call('HDEL', circuit, 'holder', 'until')
    holder = false
  end
  local lease = -1
  if holder == me then lease = redis.call('PTTL', right) end

  -- Retry budget.
  local budget = KEYS[11]
  local capacity, initial, income, reserve = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
  local account = redis.call('HMGET', budget, 'tokens', 'at', 'high', 'before', 'span')
  local tokens, at = initial, now
  if account[1] then
    tokens, at = number(account[1]), number(account[2])
  end
  if at > now or tokens >= reserve or income <= 0 then
    at = now
  else -- what is less than a thousandth of a token is left for the next
    local more = math.floor(income * (now - at) / 1000)
    at = math.floor(at + more * 1000 / income)
    tokens = math.min(reserve, tokens + more)
  end
  if new then tokens = tokens + tonumber(ARGV[11]) + tonumber(ARGV[13]) end
  -- It holds what the guard says that says the most, of late: one that has just come knows nothing of what the fleet can do.
  local span, high, before = math.floor(now / (20 * interval)), number(account[3]), number(account[4])
  local said = number(account[5])
  if said ~= span then
    before = said == span - 1 and high or 0
    high = 0
  end
  high = math.max(high, capacity)
  tokens = math.min(math.max(high, before), tokens)
  local grant = 0
  if new then grant = math.floor(math.min(tonumber(ARGV[12]), tokens)) end
  tokens = tokens - grant
  redis.call('HSET', budget, 'tokens', whole(tokens), 'at', whole(at), 'high', whole(high), 'before', whole(before), 'span', whole(span))
  redis.call('PEXPIRE', budget, 600000)

  -- What the slot under way has so far, for the circuit.
  local so = redis.call('HMGET', counts, 'e', 'o', 's', 'f', 'p')
  for i = 1, 5 do so[i] = number(so[i]) end

  return { now, slot, junk, mine, newest, owner, lease, grant, math.floor(tokens), sum, so[1], so[2], so[3], so[4], so[5] }
end

-- Where a key is of another type nothing can be told before it is cleared away. What was done until then is not done again.
local ok, out = pcall(exchange)
if ok then return out end
for i, key in ipairs(KEYS) do need(key, i == 10 and 'string' or 'hash') end
ok, out = pcall(exchange)
if ok or type(out) == 'table' then return out end
return redis.error_reply('ERR ' .. tostring(out))
