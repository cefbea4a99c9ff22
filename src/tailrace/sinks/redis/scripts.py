"""What runs inside the server: one script for streams, one for keys. Both move the mark in the same step as they write.

A mark says which offsets of a log its stream has: all below it. A call carries the mark that it builds on and the one
that it leaves. Changes below the stored mark are not written again, so a repeated call, also one of an attempt that was
given up, adds nothing. A call that builds on a mark which is not there yet, because the call before it failed, writes
nothing and says so (-1): what it carries must not pass what is missing.

Late are changes that an earlier attempt at the batch refused, and this one does not, and dead letters that are
delivered again. Marks have passed them. As entries they are remembered by their ids, so that they are added once too.

A script that fails keeps what it wrote before. So the mark is written once as it is, before anything else: a server
that takes no writes (no memory, read only, no right to it) says so there.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

BEHIND = -1
"""A call's answer where the mark it builds on is not there."""

_BEGIN = """
local stored = redis.call('GET', KEYS[1]) or '0'
local mark = tonumber(stored)
if mark < tonumber(ARGV[1]) then return -1 end
redis.call('SET', KEYS[1], stored)
"""

_END = """
if tonumber(ARGV[2]) > mark then redis.call('SET', KEYS[1], ARGV[2]) end
return 1
"""


@dataclass(frozen=True)
class Script:
    """Lua, and the name under which servers keep it."""

    text: str

    @cached_property
    def sha(self) -> str:
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


ADD_ENTRIES = Script(
    _BEGIN
    + """
-- behind the marks: how to trim ('' for not at all), the most entries; then of each entry its offset, the number of
-- its texts (negative: it is late), and these, names and values in turn, the id first
local i, n = 5, #ARGV
while i <= n do
    local texts, wanted = tonumber(ARGV[i + 1]), tonumber(ARGV[i]) >= mark
    local last = i + 1 + math.abs(texts)
    if texts < 0 then wanted = redis.call('SADD', KEYS[3], ARGV[i + 3]) == 1 end
    if wanted then
        if last >= n and ARGV[3] ~= '' then
            redis.call('XADD', KEYS[2], 'MAXLEN', ARGV[3], ARGV[4], '*', unpack(ARGV, i + 2, last))
        else
            redis.call('XADD', KEYS[2], '*', unpack(ARGV, i + 2, last))
        end
    end
    i = last + 1
end
"""
    + _END
)

WRITE_KEYS = Script(
    """
local function put(key, from, to)
    for first = from, to, 1000 do
        redis.call('HSET', key, unpack(ARGV, first, math.min(first + 999, to)))
    end
end

-- The stored texts of the columns that did not come; nil where one of them is not there.
local function kept(key, from, to)
    local found = {}
    if from > to then return found end
    if redis.call('TYPE', key).ok ~= 'hash' then return nil end
    for i = from, to do
        local text = redis.call('HGET', key, ARGV[i])
        if not text then return nil end
        found[#found + 1] = ARGV[i]
        found[#found + 1] = text
    end
    return found
end
"""
    + _BEGIN
    + """
-- behind the marks: milliseconds a key lives (0: for ever); then of each change its offset, what to do, the numbers of
-- texts and of columns that did not come, and these. Change k is about KEYS[1 + k].
local ttl, i, k, n = tonumber(ARGV[3]), 4, 2, #ARGV
while i <= n do
    local key, action = KEYS[k], ARGV[i + 1]
    local first, middle = i + 4, i + 4 + tonumber(ARGV[i + 2])
    local last = middle + tonumber(ARGV[i + 3])
    if tonumber(ARGV[i]) >= mark then
        if action == 'set' then
            redis.call('SET', key, ARGV[first])
        elseif action == 'hset' then
            local old = kept(key, middle, last - 1)
            redis.call('DEL', key)
            if old then
                put(key, first, middle - 1)
                if #old > 0 then redis.call('HSET', key, unpack(old)) end
            end
        else
            redis.call('DEL', key)
        end
        if ttl > 0 and action ~= 'del' then redis.call('PEXPIRE', key, ttl) end
    end
    i, k = last, k + 1
end
"""
    + _END
)
