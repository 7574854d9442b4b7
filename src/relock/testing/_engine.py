"""Engine that runs the scripts of ``lua/`` on virtual masters: Redis's version of Lua, with what Redis gives a script.

The texts are those that relock sends. ``redis.call`` goes to the methods of a `Store`.

Modelled: ``redis.call``, ``redis.pcall``, ``redis.error_reply``, ``redis.status_reply``; the error replies; how
numbers, nil, booleans, statuses and arrays change on their way into a script and out of it; that a script may use no
global variable.

Not modelled: other parts of ``redis``, ``cjson``, ``cmsgpack``, ``bit``, ``struct``; chance and the clock of the
machine, which a script can't reach here at all; RESP3; time limits; the error of a command with too many arguments or
too few (a `TypeError` here); what Redis appends to an error, the script's sha and the line.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from lupa.lua51 import LuaRuntime

from relock._scripts import Script
from relock.testing._arguments import ReplyError
from relock.testing._store import COMMANDS, KINDS, PLAIN, STATUS, Status, Store

ScriptReply = bytes | int | list[Any] | None

_SINGLE, _ARRAY, _ERROR, _EXCEPTION = range(4)  # the kinds of results: the first value that `finish` below returns

_GLUE = b"""
local commands, kinds, STATUS_MARK, FAILED = ...
local PLAIN, STATUS, ARRAY, HOLES = 0, 1, 2, 3 -- what a command may reply
local redis = {}

local function without_holes(...)
  local items = { ... }
  for i = 1, select('#', ...) do
    if items[i] == nil then
      items[i] = false
    end
  end
  return items
end

-- A command that fails returns nil, FAILED and the text. If it raised a Python exception instead, Lua would keep that,
-- and the frames of all calls that it passed, until the next garbage collection.
local function no_value(mark, text)
  if mark == FAILED then
    error({ err = text }, 0)
  end
  return false
end

local function checked(...)
  local first, mark, text = ...
  if first == nil and mark == FAILED then -- a list of replies may have a 0 in this place
    error({ err = text }, 0)
  end
  return ...
end

-- What a script calls for a command, by the kind of reply that the command may give.
local forms = {
  [PLAIN] = function(ask)
    return function(...)
      local reply, mark, text = ask(...)
      if reply == nil then
        return no_value(mark, text)
      end
      return reply
    end
  end,
  [STATUS] = function(ask)
    return function(...)
      local reply, mark, text = ask(...)
      if reply == nil then
        return no_value(mark, text)
      elseif string.sub(reply, 1, 1) == STATUS_MARK then
        return { ok = string.sub(reply, 2) }
      end
      return reply
    end
  end,
  [ARRAY] = function(ask)
    return function(...)
      return { checked(ask(...)) }
    end
  end,
  [HOLES] = function(ask)
    return function(...)
      return without_holes(checked(ask(...)))
    end
  end,
}

-- Only names in small letters and unknown names get here, and both are rare.
local calls = setmetatable({}, { __index = function(own, name)
  return rawget(own, string.upper(name)) or error({ err = 'ERR Unknown Redis command called from script' }, 0)
end })
for name, kind in pairs(kinds) do
  calls[name] = forms[kind](commands[name])
end

function redis.call(name, ...)
  return calls[name](...)
end

-- The text of an error that a script catches. A Python exception is a defect of this model, so this raises it again.
local function text_of(failure)
  if type(failure) == 'userdata' then
    error(failure, 0)
  end
  return type(failure) == 'table' and failure.err or failure
end

local function caught(is_done, ...)
  if is_done then
    return true, ...
  end
  return false, text_of((...))
end

function redis.pcall(name, ...)
  local is_done, reply = pcall(redis.call, name, ...)
  if is_done then
    return reply
  end
  return { err = text_of(reply) }
end

function redis.error_reply(text)
  return { err = text }
end

function redis.status_reply(text)
  return { ok = text }
end

local library = { redis = redis, string = string, table = table }
for _, name in ipairs({ 'assert', 'error', 'getmetatable', 'ipairs', 'next', 'pairs', 'rawequal', 'rawget',
  'rawset', 'select', 'setmetatable', 'tonumber', 'tostring', 'type', 'unpack' }) do
  library[name] = _G[name]
end
library.pcall = function(...)
  return caught(pcall(...))
end
library.math = setmetatable({ random = false, randomseed = false }, { __index = math })
local environment = setmetatable({}, {
  __index = function(_, name)
    if library[name] == nil then
      error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
    end
    return library[name]
  end,
  __newindex = function()
    error('Attempt to modify a readonly table', 2)
  end,
})

-- How a run ended, as one of the numbers that Python knows, and what it returned.
local function finish(is_done, reply)
  if not is_done then
    if type(reply) == 'table' then
      return 2, tostring(reply.err)
    elseif type(reply) ~= 'userdata' then
      return 2, 'ERR ' .. tostring(reply)
    end
    return 3, reply -- an exception of Python's
  elseif type(reply) ~= 'table' then
    return 0, reply
  elseif type(reply.err) == 'string' then
    return 2, reply.err
  elseif type(reply.ok) == 'string' then
    return 0, reply.ok
  end
  return 1, unpack(reply)
end

-- Compiles a script to a function. KEYS, ARGV and redis stand on its first line, so that line numbers stay right.
local function compile(source)
  return setfenv(assert(loadstring('local KEYS, ARGV, redis = ... ' .. source, '@user_script')), environment)
end

-- Makes the function that runs a script with so many keys. It has a parameter for each key, because that is fastest.
local function runner(count)
  local keys = {}
  for i = 1, count do
    keys[i] = 'k' .. i
  end
  local list = table.concat(keys, ', ')
  local text = 'local pcall, finish, redis = ... return function(script' .. (count > 0 and ', ' or '') .. list
    .. ', ...) return finish(pcall(script, { ' .. list .. ' }, { ... }, redis)) end'
  return assert(loadstring(text))(pcall, finish, redis)
end

return compile, runner
"""


STATUS_MARK = b"\x01"  # a status begins with it; no stored value that a script reads by SET ... GET does
FAILED = 0  # the second value of an error; a reply has text or nothing there


class Engine:
    """Lua interpreter for any number of virtual masters; not for two threads at a time."""

    def __init__(self) -> None:
        self._lua = LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False, register_builtins=False)
        self._store = Store()
        commands = self._lua.table_from({name.encode(): self._command(method) for name, method in COMMANDS.items()})
        kinds = self._lua.table_from({name.encode(): KINDS.get(name, PLAIN) for name in COMMANDS})
        self._compile, self._make_runner = self._lua.execute(_GLUE, commands, kinds, STATUS_MARK, FAILED)
        self._scripts: dict[str, Any] = {}
        self._runners: dict[int, Any] = {}

    def _command(self, name: str) -> Callable[..., Any]:
        """Return the function that Lua calls for a command; it works on the store of the script that runs now.

        Lua thus keeps no store alive, though masters come and go by the million.
        """
        method = getattr(Store, name)

        def ask(*arguments: Any) -> Any:
            try:
                return method(self._store, *arguments)
            except ReplyError as error:
                return None, FAILED, str(error).encode()

        def ask_for_status(*arguments: Any) -> Any:
            try:
                reply = method(self._store, *arguments)
            except ReplyError as error:
                return None, FAILED, str(error).encode()
            # Lua gets a status as text, because a Python object that goes through Lua may come out as another one.
            return STATUS_MARK + reply.word if type(reply) is Status else reply

        return ask_for_status if KINDS.get(name.upper()) == STATUS else ask

    def run(self, script: Script, store: Store, keys: Sequence[bytes], arguments: Sequence[bytes]) -> ScriptReply:
        """Run a script on this store; return its reply as redis-py does.

        Raises:
            ReplyError: the script ended with an error; what it wrote before that stays.
        """
        self._store = store
        function = self._scripts.get(script.sha)
        if function is None:
            function = self._scripts[script.sha] = self._compile(script.source)
        runner = self._runners.get(len(keys))
        if runner is None:
            runner = self._runners[len(keys)] = self._make_runner(len(keys))
        result = runner(function, *keys, *arguments)
        if result == _ARRAY:
            return []  # a single value does not come as a tuple
        if result[0] == _ARRAY:
            return _reply_list(result[1:])
        return _reply_single(*result)


@cache
def shared_engine() -> Engine:
    """Return the engine of this process, which compiles each script once, however many masters come and go."""
    return Engine()


def _reply_single(kind: int, value: Any) -> ScriptReply:
    if kind == _ERROR:
        raise ReplyError(value.decode(errors="replace"))
    if kind == _EXCEPTION:
        raise value
    reply: ScriptReply = _reply_item(value)
    return reply


def _reply_list(items: Sequence[Any]) -> list[Any]:
    """Return an array as a reply, which ends before its first nil, as Redis reads it."""
    reply = []
    for item in items:
        if item is None:
            break
        reply.append(item if type(item) is bytes or type(item) is int else _reply_item(item))
    return reply


def _reply_item(value: Any) -> Any:
    """Return one value of a script as a reply: fractions are cut off, true becomes 1, false and nil become None."""
    if value is None or value is False:
        return None
    if type(value) is bytes or type(value) is int:
        return value
    if value is True or type(value) is float:
        return int(value)
    return _reply_table(value)


def _reply_table(table: Any) -> Any:
    """Return a table within a table as a reply. An error there is not raised: it becomes a value, as a status does."""
    if table[b"err"] is not None:
        return ReplyError(table[b"err"].decode(errors="replace"))
    if table[b"ok"] is not None:
        return table[b"ok"]
    return _reply_list([table[index] for index in range(1, len(table) + 1)])
