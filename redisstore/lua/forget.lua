-- forget removes a replica that is gone and has no tasks, unless it has come back.
--
-- KEYS  1 the replicas
-- ARGV  1 replica  2 its entry when it was found gone
-- reply ok
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[1]) end
return { 'ok' }
