-- The article's window, one member a call: what one instance's calls came to is added, what is older than the window removed, and what is
-- of the future, which a clock that went back has made; the rest is counted, and the members of the last slot told. See docs/cluster.md.
--
-- A member's name is the exchange's own: what is repeated adds nothing.
--
-- KEYS 1 successes, 2 all others.
-- ARGV 1 instance, 2 number of the exchange, 3 interval in ms, 4 window in ms, 5 most members to tell, 6 number of successes in what follows,
-- then the members: first the successes, then the others.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local interval, window, most = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local slot = math.floor(now / interval)
for i = 1, 2 do
  local t = redis.call('TYPE', KEYS[i]).ok
  if t ~= 'none' and t ~= 'zset' then redis.call('DEL', KEYS[i]) end
end
local good = 6 + tonumber(ARGV[6])
for i = 7, #ARGV do
  redis.call('ZADD', i <= good and KEYS[1] or KEYS[2], 'NX', now, ARGV[i])
end
local out = { now, slot }
local from, to = (slot - 1) * interval, '(' .. string.format('%.0f', slot * interval)
for i = 1, 2 do
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', '(' .. string.format('%.0f', now - window))
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '(' .. string.format('%.0f', now), '+inf')
  out[#out + 1] = redis.call('ZCOUNT', KEYS[i], '-inf', '+inf')
end
for i = 1, 2 do
  for _, m in ipairs(redis.call('ZRANGEBYSCORE', KEYS[i], string.format('%.0f', from), to, 'LIMIT', 0, most)) do
    if #m <= 64 then out[#out + 1] = m end
  end
end
for i = 1, 2 do redis.call('PEXPIRE', KEYS[i], window + 20 * interval) end
return out
