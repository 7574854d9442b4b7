"""Bugs that the simulator must find: each a change to the shipped files, which takes one safety check away.

They are the control of the simulator: a run of seeds that passes says something only if the same run fails where
something is wrong.
"""

from attrs import frozen

CORE = "src/relock/_core"
RUNTIME = "src/relock/_runtime"


@frozen
class Bug:
    """A planted bug.

    Attributes:
        what: what is wrong then.
        file: its path in the repository.
        text: what stands there, exactly once.
        instead: what the bug puts in its place.
        seed: a seed that finds it. If it no longer does, `sim.hunt` looks for another one.
    """

    what: str
    file: str
    text: str
    instead: str
    seed: int


BUGS = [
    Bug(
        "a quorum is one too few",
        f"{CORE}/quorum.py",
        "return masters // 2 + 1",
        "return max(1, masters // 2)",
        seed=1000,
    ),
    Bug(
        "nothing is allowed for clocks that run at different rates",
        f"{CORE}/quorum.py",
        "return drift_factor * ttl + DRIFT_SECONDS_MIN",
        "return 0.0",
        seed=1004,
    ),
    Bug(
        "D is the end of the longest lease, not the q-th",
        f"{CORE}/quorum.py",
        "else sorted(ends, reverse=True)[quorum - 1]",
        "else sorted(ends, reverse=True)[0]",
        seed=1013,
    ),
    Bug(
        "validity does not count the time that the request took",
        f"{CORE}/flows/acquire.py",
        "outcome = judge(answers, spec.masters, sent_at + spec.validity, clock())",
        "outcome = judge(answers, spec.masters, clock() + spec.validity, clock())",
        seed=1136,
    ),
    Bug(
        "a renewal counts from its reply",
        f"{CORE}/flows/extend.py",
        "hold.count_renewal(answer, sent_at, _end(hold, ttl, sent_at), now, ttl)",
        "hold.count_renewal(answer, sent_at, _end(hold, ttl, now), now, ttl)",
        seed=1081,
    ),
    Bug(
        "a renewal counts though D has passed",
        f"{CORE}/hold.py",
        "is_in_time = now < deadline_of(self.lease_ends, self.quorum)",
        "is_in_time = True",
        seed=2813,
    ),
    Bug(
        "a hold is believed forever",
        f"{CORE}/hold.py",
        "return 0.0 if self.loss else max(0.0, self.deadline - now)",
        "return 0.0 if self.loss else 1.0",
        seed=1008,
    ),
    Bug(
        "a master that forgot the hold still counts",
        f"{CORE}/hold.py",
        'if is_status(answer, b"absent"):\n                self.lease_ends[i] = NEVER',
        'if is_status(answer, b"absent"):\n                pass',
        seed=1065,
    ),
    Bug(
        "a hold that is released is healed",
        f"{CORE}/flows/extend.py",
        "holds = [hold for hold in holds if is_current(hold)]",
        "holds = list(holds)",
        seed=1241,
    ),
    Bug(
        "nothing is undone",
        f"{RUNTIME}/background/janitor.py",
        "    def _undo(self, tasks: Sequence[UndoTask]) -> None:\n",
        ("    def _undo(self, tasks: Sequence[UndoTask]) -> None:\n        return\n"),
        seed=1013,
    ),
    Bug(
        "a failed attempt is not given back",
        f"{CORE}/waiting.py",
        "            if outcome.undecided:\n                yield from self._settle(",
        "            if False:\n                yield from self._settle(",
        seed=1013,
    ),
    Bug(
        "one name for all attempts",
        f"{CORE}/waiting.py",
        "owners.append(attempt_name(self.wait.waiter, len(owners), self.ticket or self.proposed or None))",
        "owners.append(self.wait.waiter)",
        seed=1072,
    ),
    Bug(
        "one uuid for all holds of a client",
        f"{RUNTIME}/wakeups/hub.py",
        ".__mod__, self._serials)",
        ".__mod__, itertools.repeat(1))",
        seed=1005,
    ),
    Bug(
        "nothing is void, however late it comes",
        f"{CORE}/clocks.py",
        "min(int(earliest * 1e6), NOT_AFTER_US_MAX) if earliest > 0.0 else 0",
        "NOT_AFTER_US_MAX",
        seed=1026,
    ),
    Bug(
        "an enqueue is never void",
        "lua/enqueue.lua",
        "if now > not_after_us and tonumber(now) > tonumber(not_after_us) then",
        "if tonumber(now) > tonumber(not_after_us) + 1e12 then",
        seed=1131,
    ),
    Bug(
        "a nested release ends the hold",
        "lua/count.lua",
        "redis.pcall('HSET', lock, owner, count) == 0",
        "(count == '1' and redis.call('HDEL', lock, owner) or redis.call('HSET', lock, owner, count)) >= 0",
        seed=1005,
    ),
    Bug(
        "the hold count is added to, not set",
        "lua/count.lua",
        "redis.pcall('HSET', lock, owner, count) == 0",
        "redis.call('HINCRBY', lock, owner, math.min(1, tonumber(count))) ~= ''",
        seed=1005,
    ),
    Bug(
        "anybody may take a lock that is held",
        "lua/_lib/take.lua",
        "  if holder then\n    return nil, holder\n  end\n",
        "",
        seed=1000,
    ),
    Bug(
        "a release ends whatever hold is there",
        "lua/release.lua",
        "redis.pcall('HDEL', lock, owner)",
        "redis.call('DEL', lock)",
        seed=1001,
    ),
    Bug(
        "newcomers pass the queue",
        "lua/_lib/take.lua",
        "if fair == '1' then",
        "if false then",
        seed=1008,
    ),
    Bug(
        "a release wakes nobody, and heartbeats neither",
        "lua/_lib/queue.lua",
        "on_own('ZRANGE', queue, 0, 0, 'WITHSCORES')",
        "{}",
        seed=1008,
    ),
    Bug(
        "dead waiters are not passed over",
        "lua/_lib/tell.lua",
        "local publish_counts = true",
        "local publish_counts = false",
        seed=1431,
    ),
    Bug(
        "a wait is over before its place is given up",
        f"{CORE}/waiting.py",
        "patience.is_over(outcome, now)):\n                yield from self._leave(outcome)\n",
        "patience.is_over(outcome, now)):\n",
        seed=1023,
    ),
    Bug(
        "a token is not above the last one",
        "lua/_lib/remember.lua",
        "  if not (last and last >= now_us and last < token_max) then",
        "  if true then",
        seed=1000,
    ),
    Bug(
        "the smallest token that was granted is taken",
        f"{CORE}/quorum.py",
        "token = max(tokens)",
        "token = min(tokens)",
        seed=1007,
    ),
    Bug(
        "a release does not write the token back",
        "lua/release.lua",
        "if fence ~= '0' and tonumber(fence) > last_token(token) then",
        "if false then",
        seed=1013,
    ),
    Bug(
        "a token counts as known to a quorum that only one master gave",
        f"{CORE}/quorum.py",
        "tokens.count(token) >= quorum, answers",
        "True, answers",
        seed=1013,
    ),
    Bug(
        "a proposed token is given, whatever was given before",
        "lua/acquire.lua",
        "  if not last or (#last == #ours and last < ours) then",
        "  if true then",
        seed=1000,
    ),
    Bug("no restart guard", "lua/_lib/vote.lua", "  if now_us < until_us then\n", "  if false then\n", seed=1101),
    Bug(
        "a master is known by its marker alone, not by the socket's incarnation",
        "lua/_lib/vote.lua",
        "if marker[1] ~= incarnation then",
        "if not marker[1] then",
        seed=1101,
    ),
    Bug(
        "a reply is given to the request after the one that it belongs to",
        f"{RUNTIME}/masters/connections.py",
        "            sent: Any = in_flight[0]\n",
        "            sent = in_flight[-1]\n",
        seed=1002,
    ),
    Bug(
        "the last of the queue is given the lock",
        "lua/_lib/hand_usual.lua",
        "redis.pcall('ZRANGE', queue, '0', '0', 'WITHSCORES')",
        "redis.pcall('ZREVRANGE', queue, '0', '0', 'WITHSCORES')",
        seed=1001,
    ),
    Bug(
        "a token does not rise with the clock where the last one is not known",
        "lua/acquire.lua",
        "  last = redis.call('SET', token, ours, 'PX', token_ms, 'GET')\n",
        (
            "  last = redis.call('GET', token) or 0\n"
            "  redis.call('SET', token, last + 1, 'PX', token_ms)\n"
            "  if last then\n    return 'granted ' .. now .. ' ' .. redis.call('GET', token)\n  end\n"
        ),
        seed=1007,
    ),
    Bug(
        "tickets are read from the client's clock",
        f"{CORE}/waiting.py",
        "        self.ticket = outcome.ticket\n",
        "        self.ticket = outcome.ticket and int(self.wait.clock() * 1e6)\n",
        seed=1002,
    ),
    Bug(
        "a ticket is taken that others have passed",
        "lua/enqueue.lua",
        "redis.pcall('ZCOUNT', queue, chosen, '+inf') ~= 0 then",
        "false then",
        seed=1144,
    ),
    Bug(
        "a ticket is proposed that others have passed",
        "lua/_lib/place.lua",
        "math.max(tonumber(last[2] or 0) + 1, ticket_above_holders",
        "math.max(ticket_above_holders",
        seed=1085,
    ),
    Bug(
        "a token that clocks far apart made is not written to a quorum",
        f"{CORE}/quorum.py",
        "highest >= reply[1]:",
        "False:",
        seed=1045,
    ),
    Bug(
        "a waiting thread that leaves lets no other one read the subscriptions",
        "src/relock/_runtime/wakeups/shared_subscriptions.py",
        "        if _LEADER in self._role:\n            return\n        follower",
        "        if self._role is not None:\n            return\n        follower",
        seed=1446,
    ),
    Bug(
        "heartbeats are never sent",
        f"{RUNTIME}/background/janitor.py",
        "        if self._next_heartbeat() <= now:\n",
        "        if False:\n",
        seed=1002,
    ),
    Bug(
        "an extension shortens the lease",
        "lua/_lib/lengthen.lua",
        "math.max(redis.call('PTTL', key), tonumber(ttl_ms), 1)",
        "math.max(tonumber(ttl_ms), 1)",
        seed=1069,
    ),
    Bug(
        "nobody wakes the thread that sends heartbeats",
        f"{RUNTIME}/background/janitor.py",
        "        if min(due, self._beat_at) < self._wakes_at:\n",
        "        if False:\n",
        seed=1048,
    ),
    Bug(
        "the watchdog does not renew",
        f"{CORE}/hold.py",
        "return now >= self.renew_at - self.ahead",
        "return False",
        seed=1002,
    ),
    Bug(
        "a grant that was given back is taken after all",
        f"{CORE}/waiting.py",
        "            if grant.owner not in self.declined:\n",
        "            if grant.owner:\n",
        seed=1000,
    ),
    Bug(
        "a grant counts from the arrival of its message",
        f"{RUNTIME}/wakeups/hub.py",
        "begins = subscription.granted_at(granted_us, incarnation, self._clock())",
        "begins = self._clock()",
        seed=1058,
    ),
    Bug(
        "the short lease of a grant counts as the full one",
        f"{CORE}/quorum.py",
        "begins + lease - drift_of(lease, drift_factor)",
        "begins + 5.0 - drift_of(5.0, drift_factor)",
        seed=1025,
    ),
    Bug(
        "nobody gives back a grant for a waiter that has left",
        f"{RUNTIME}/session/reports.py",
        "            session.undo(keys, owner, token, session.options.ttl, session.clock())\n",
        "            pass\n",
        seed=1013,
    ),
    Bug(
        "grants of two names make a quorum",
        f"{CORE}/waiting.py",
        "by_name.setdefault(grant.owner, []).append(grant)",
        "by_name.setdefault(grants[0].owner, []).append(grant)",
        seed=1013,
    ),
    Bug(
        "a hold that was handed over is named after its waiter alone",
        "lua/_lib/hand_usual.lua",
        "redis.call('HSET', lock, grantee .. '~' .. hold, '1')",
        "redis.call('HSET', lock, grantee, '1')",
        seed=1001,
    ),
    Bug(
        "a grant has the master's clock as its token, whatever was given before",
        "lua/_lib/hand_over.lua",
        "token and token + 1 or next_token(token_key, now_us, lease_ms)",
        "(remember(token_key, now_us, now_us, lease_ms) or true) and now_us",
        seed=1002,
    ),
    Bug(
        "a clock that steps goes unnoticed",
        f"{CORE}/clocks.py",
        "STEP_SECONDS = 0.05",
        "STEP_SECONDS = 1e6",
        seed=2085,
    ),
    Bug(
        "a master whose clock steps keeps its vote",
        f"{RUNTIME}/session/reports.py",
        "        if len(session.masters) > 1:\n            session.janitor.hand(tasks.Accuse(",
        "        if False:\n            session.janitor.hand(tasks.Accuse(",
        seed=2085,
    ),
    Bug(
        "a client that stood still accuses the masters",
        f"{CORE}/flows/quarantine.py",
        "return len({master for master, other in steps if abs(other - seconds) <= near}) >= quorum_of(masters)",
        "return False",
        seed=1923,
    ),
    Bug(
        "a client takes every step for its own",
        f"{CORE}/flows/quarantine.py",
        "return len({master for master, other in steps if abs(other - seconds) <= near}) >= quorum_of(masters)",
        "return True",
        seed=2085,
    ),
    Bug(
        "a client that stood still keeps its holds",
        f"{CORE}/hold.py",
        "        self.lease_ends[step.master] -= step.seconds\n",
        "",
        seed=1072,
    ),
    Bug(
        "a forked child keeps its parent's holds",
        "src/relock/client.py",
        "        self._session.take_over(parents)\n",
        "        self._session.take_over(parents)\n        self._session.holds = parents.holds\n",
        seed=1394,
    ),
    Bug(
        "a forked child keeps its parent's connections",
        "src/relock/client.py",
        "        closing.abandon_in_child(parents)\n",
        "",
        seed=1046,
    ),
    Bug(
        "an interrupted wait keeps its place in the queue",
        f"{CORE}/interrupts.py",
        "            host.hubs.forget(owners[0])",
        "            pass",
        seed=1073,
    ),
    Bug(
        "an interrupted acquire is not undone",
        f"{CORE}/interrupts.py",
        "            for owner in owners:\n                host.undo(",
        "            for owner in ():\n                host.undo(",
        seed=1027,
    ),
    Bug(
        "a hold whose release was interrupted is renewed for nobody",
        f"{CORE}/interrupts.py",
        "            elif hold.loss is None:\n                host.holds.pop(",
        "            elif False:\n                host.holds.pop(",
        seed=1030,
    ),
    Bug(
        "the hold count goes up or down by one, however often that is asked",
        "lua/count.lua",
        "redis.pcall('HSET', lock, owner, count) == 0",
        (
            "redis.call('HINCRBY', lock, owner, "
            "tonumber(count) > tonumber(redis.call('HGET', lock, owner)) and 1 or -1) ~= ''"
        ),
        seed=1013,
    ),
    Bug(
        "an acquire that arrives again is never void",
        "lua/acquire.lua",
        "tonumber(now) > tonumber(not_after_us) then",
        "tonumber(now) > tonumber(not_after_us) + 1e12 then",
        seed=1103,
    ),
    Bug(
        "a forked child goes by its parent's name",
        "src/relock/client.py",
        "        self._session.take_over(parents)\n",
        (
            "        self._session.take_over(parents)\n"
            "        self._session.client_id = self._session.hub.client = parents.client_id\n"
            "        self._session.hub.owner_head = parents.hub.owner_head\n"
            "        self._session.hubs.add(self._session.hub)\n"
        ),
        seed=1053,
    ),
    # Only the wider runs find these.
    Bug(
        "a hold that could not be lengthened is renewed as if it had been",
        f"{CORE}/hold.py",
        "            self.leased = before if self.leased is None else self.leased\n",
        "            self.leased = None\n",
        seed=1676,
    ),
    Bug(
        "a nested acquire with a longer ttl does not ask for it",
        f"{CORE}/calls.py",
        "        if options.ttl > hold.ttl:\n",
        "        if False:\n",
        seed=1008,
    ),
    Bug(
        "a master counts no more than two levels",
        "lua/count.lua",
        "redis.pcall('HSET', lock, owner, count) == 0",
        "redis.pcall('HSET', lock, owner, math.min(tonumber(count), 2)) == 0",
        seed=1008,
    ),
    # Only runs in which masters move, or in which a process uses other locks as well, find these.
    Bug(
        "a subscription stays where it was when its master has moved",
        f"{RUNTIME}/wakeups/subscription.py",
        "return self._is_misled or self._incarnation != self._master.facts.incarnation",
        "return False",
        seed=1075,
    ),
    Bug(
        "a grant is taken whichever incarnation has made it",
        f"{RUNTIME}/wakeups/subscription.py",
        "        if incarnation != self._incarnation:\n",
        "        incarnation = self._master.incarnation\n        if False:\n",
        seed=1668,
    ),
    Bug(
        "the name of a lock is that of another one when it was made anew",
        f"{RUNTIME}/wakeups/hub.py",
        "waiter.keys.name.encode() == name",
        "waiter.keys.name is name",
        seed=1001,
    ),
    Bug(
        "a socket counts as leading to what it led to when it was opened",
        "lua/_lib/just_now.lua",
        "just_now_us = 1000\n",
        "just_now_us = 1e12\n",
        seed=1401,
    ),
    # Only runs in which nobody reads what one client logs find this.
    Bug(
        "what is logged is told on the thread that has found it",
        f"{RUNTIME}/background/telling.py",
        "self.hand(self._handle, (copy_context(), logger, made, args), is_ordinary=level < logging.WARNING)",
        "self._handle((copy_context(), logger, made, args))",
        seed=1000,
    ),
    # Only runs in which tasks use clients find these.
    Bug(
        "nothing is undone where a task is cancelled",
        "src/relock/aio_lock.py",
        "                if not record.is_overtaken:\n                    session.",
        "                if False:\n                    session.",
        seed=1039,
    ),
    Bug(
        "a cancellation in the turn of a grant is swallowed",
        f"{RUNTIME}/aio/foreground.py",
        "                await woken\n        finally",
        "                with suppress(asyncio.CancelledError):\n                    await woken\n        finally",
        seed=1076,
    ),
    Bug(
        "a task's lease counts from the answer",
        f"{CORE}/calls.py",
        "            first = started_at, answers\n            outcome",
        "            first = (host.clock() if self._is_crowded else started_at), answers\n            outcome",
        seed=7297,
    ),
    Bug(
        "no timer wakes a task that sleeps",
        f"{RUNTIME}/aio/loop_inbox.py",
        "        if not now <= alarms.looks_at <= until:",
        "        if False:",
        seed=1001,
    ),
    Bug(
        "a cancelled release is not carried out",
        "src/relock/aio_lock.py",
        "        else:\n            interrupted.undo_release(record, self._spec, who, 1)\n",
        "",
        seed=1403,
    ),
    Bug(
        "a release that was cancelled before it began is not carried out",
        "src/relock/aio_lock.py",
        "            if unbegun is not None:\n",
        "            if False:\n",
        seed=1030,
    ),
    Bug(
        "a hold belongs to the task that awaits",
        "src/relock/aio_lock.py",
        "        until = foreground.session.clock() + limit\n        while True:",
        "        until, who = foreground.session.clock() + limit, self._who()\n        while True:",
        seed=1100,
    ),
    Bug(
        "a loop judges a master before it takes what has come",
        f"{RUNTIME}/aio/link.py",
        "        while connection is not None and connection is self.connection and connection.in_flight:\n",
        "        while False and connection is not None:\n",
        seed=1053,
    ),
    Bug(
        "a task is not woken by what others put in",
        f"{RUNTIME}/aio/loop_inbox.py",
        "            inboxes.loop.call_soon_threadsafe(self.ring)\n",
        "            pass\n",
        seed=1167,
    ),
    Bug(
        "a loop's connection is used on though it leads to another server",
        f"{RUNTIME}/aio/link.py",
        "        if shown.is_retired or shown.incarnation != self.master.facts.known.incarnation:\n",
        "        if False:\n",
        seed=1053,
    ),
    # Only runs in which loops are closed find this.
    Bug(
        "a task whose loop is closed goes on being renewed",
        "src/relock/_owner.py",
        "task is None or task.done() or task.get_loop().is_closed() else",
        "task is None or task.done() else",
        seed=1070,
    ),
    # Only runs in which strangers come find these.
    Bug(
        "a client that has reached no quorum begins a guard",
        f"{CORE}/socket_facts.py",
        "self.guard_ms if facts.may_begin_guard else -self.guard_ms",
        "self.guard_ms",
        seed=1071,
    ),
    Bug(
        "a master that votes loses its vote for a larger guard",
        "lua/_lib/vote.lua",
        "    if now_us >= until_us then\n      if string.byte",
        "    if false then\n      if string.byte",
        seed=1052,
    ),
    # Only runs in which many waits end at one moment find these.
    Bug(
        "each of many waits that end at one moment looks once more",
        f"{CORE}/waiting.py",
        "(now < self.limit and not self.wait.is_crowded())",
        "now < self.limit",
        seed=1029,
    ),
    Bug(
        "a wait that lacks the time for a last look says that no quorum has answered",
        f"{CORE}/waiting.py",
        "return self.refusal if had_no_time or outcome.lacked_time(was_short=was_short) else outcome",
        "return outcome",
        seed=1029,
    ),
    # Only runs in which clients that wait cannot act find these.
    Bug(
        "heartbeats keep the places of those that cannot act",
        f"{RUNTIME}/background/places.py",
        "            if waiter.keys.kind == LATCH or not self._turns.has_missed(waiter, now):",
        "            if True:",
        seed=1058,
    ),
    Bug(
        "one that is told and does not look keeps its place",
        f"{CORE}/turns.py",
        "return since <= now - TURN_SECONDS and self.run_for(since, now) >= TURN_SECONDS",
        "return False",
        seed=1058,
    ),
    Bug(
        "all tasks of a loop that stands still have their turns",
        f"{RUNTIME}/wakeups/waiter.py",
        "since = self.due_at if pulse is None or pulse.asked_at > self.due_at else pulse.asked_at",
        "since = self.due_at",
        seed=1107,
    ),
    # Only runs in which callers take several locks find these.
    Bug(
        "several locks are taken in any order",
        "src/relock/_options.py",
        "    return sorted(different, key=str.encode)\n",
        "    return list(different)\n",
        seed=1827,
    ),
    Bug(
        "a caller that waits for one of several locks keeps those behind it",
        f"{CORE}/multi.py",
        "            yield from self._give_back(record, who, left[refused + 1 :])\n",
        "            behind = [one for one, other in zip(left, outcomes, strict=True) if other is not None]\n"
        "            left = [*left[: refused + 1], *behind[1:]]\n",
        seed=1827,
    ),
    Bug(
        "a caller that does not get several locks keeps those before the refused one",
        f"{CORE}/multi.py",
        "                yield from self._give_up(record, who, until)\n",
        "",
        seed=1007,
    ),
    Bug(
        "one of several locks may be lost during the wait for another",
        f"{CORE}/multi.py",
        "        yield from self._check_all(record, who)\n",
        "",
        seed=1182,
    ),
    Bug(
        "a release of several locks stops at the first error",
        f"{CORE}/multi.py",
        "one in zip(record.members, spec.members, strict=True)]\n",
        "one in zip(record.members, spec.members, strict=True)]\n"
        "        for flow in flows:\n            yield from flow\n",
        seed=1182,
    ),
    Bug(
        "the undo of an interrupted call forgets one of several locks",
        f"{CORE}/interrupts.py",
        "        for part in reversed(record.members):\n",
        "        for part in reversed(record.members[1:]):\n",
        seed=1200,
    ),
    Bug(
        "an interrupted release of several locks leaves those that it had not begun with",
        f"{CORE}/interrupts.py",
        "        if record.due is not None and record.hold is None and record.completed is None:\n",
        "        if False:\n",
        seed=1030,
    ),
    # Only runs in which callers take permits of a semaphore find these.
    Bug(
        "permits are counted on each of several masters, not given by their slots",
        "lua/_lib/fit.lua",
        "  elseif slot < 0 then\n    slot = 0\n",
        "  elseif true then\n    slot = 0\n",
        seed=1102,
    ),
    Bug(
        "a slot is given twice",
        "lua/_lib/fit.lua",
        "    while view.slots[slot] do\n",
        "    while false do\n",
        seed=1022,
    ),
    Bug(
        "an operator's limit is not heeded",
        "lua/_lib/fit.lua",
        "  return override and override >= 0 and override or own\n",
        "  return own\n",
        seed=1102,
    ),
    Bug(
        "a slot beyond the limit is given",
        "lua/_lib/fit.lua",
        "view.slots[slot] or slot >= cap then",
        "view.slots[slot] then",
        seed=4129,
    ),
    Bug(
        "several permits count as one",
        "lua/_lib/leases.lua",
        "      view.used = view.used + math.max(1, -value)\n",
        "      view.used = view.used + 1\n",
        seed=1036,
    ),
    Bug(
        "a dead lease is not passed over",
        "lua/_lib/leases.lua",
        "  local end_ms = math.floor(now_us / 1000) + 1 + lease_ms\n",
        "  local end_ms = math.floor(now_us / 1000) + 60000 + lease_ms\n",
        seed=1823,
    ),
    Bug(
        "a permit whose lease has ended is extended",
        "lua/permit_extend.lua",
        "if not end_ms or on_own('HEXISTS', permits, owner) ~= 1 or tonumber(end_ms) <= math.floor(now_us / 1000) then",
        "if false then",
        seed=2488,
    ),
    Bug(
        "a permit is healed though another owner has its slot",
        "lua/permit_heal.lua",
        "(holder and holder ~= owner)",
        "false",
        seed=1062,
    ),
    Bug(
        "a permit is healed in another slot",
        f"{CORE}/flows/extend.py",
        "value = hold.spec.value_of(hold.kept)",
        "value = hold.kept and hold.kept - 1",
        seed=1512,
    ),
    Bug(
        "a releaser hands over a slot that another owner has",
        "lua/permit_release.lua",
        "ended == 1 and tonumber(value) or -1\n    if hand == '1' and slot >= 0 and not view.slots[slot] and",
        "ended == 1 and 0 or -1\n    if hand == '1' and slot >= 0 and",
        seed=1057,
    ),
    Bug(
        "newcomers pass the queue of a semaphore",
        "lua/_lib/take_permit.lua",
        "if fair == '1' then",
        "if false then",
        seed=1102,
    ),
    Bug(
        "a wait asks for the same slot again",
        f"{CORE}/waiting.py",
        "        self.value = free[int(self.wait.jitter() * len(free))]\n",
        "",
        seed=1057,
    ),
    Bug(
        "a wait never looks for another slot",
        f"{CORE}/waiting.py",
        "            if spec.slots is not None and self._tries_other_slot(outcome, answers, now):\n",
        "            if False:\n",
        seed=1057,
    ),
    Bug(
        "a slot that too few masters gave stays taken",
        "lua/permit_give_back.lua",
        "local waiter = string.match(owner, '^[^~]*')\n",
        "local waiter = string.match(owner, '^[^~]*')\nif true then\n  return 'absent ' .. now\nend\n",
        seed=1408,
    ),
    Bug(
        "nothing is undone where a task that waits for permits is cancelled",
        "src/relock/aio_semaphore.py",
        "            session.interrupted_of_tasks.undo_acquire(record)\n",
        "",
        seed=1030,
    ),
    Bug(
        "two permits of one caller are one",
        "src/relock/_owner.py",
        "PermitKey(next(serials), caller.name)",
        "PermitKey(0, caller.name)",
        seed=1017,
    ),
    # Only runs in which callers read and write find these.
    Bug(
        "a reader does not look at the writer",
        "lua/_lib/take_read.lua",
        "  if writer and not is_own(writer, owner) then",
        "  if false then",
        seed=1027,
    ),
    Bug(
        "a writer takes over a lock that one reader has",
        "lua/_lib/take.lua",
        "  if holder then\n    return nil, holder\n",
        "  if holder and not is_reader(holder) then\n    return nil, holder\n",
        seed=1027,
    ),
    Bug(
        "a reader is reaped before its lease has ended",
        "lua/_lib/leases.lua",
        "'-inf', digits(math.floor(now_us / 1000)), 'LIMIT'",
        "'-inf', digits(math.floor(now_us / 1000) + 500), 'LIMIT'",
        seed=1025,
    ),
    Bug(
        "one reader's renewal lengthens all",
        "lua/read_extend.lua",
        "keep_lease(lock, leases, owner, lease_ms, now_us)\n",
        (
            "for _, name in ipairs(redis.call('HKEYS', lock)) do\n"
            "  keep_lease(lock, leases, name, lease_ms, now_us)\n"
            "end\n"
        ),
        seed=1039,
    ),
    Bug(
        "a reader passes a writer that waits",
        "lua/_lib/take_read.lua",
        "    if has_writer_ahead(queue, waiter) then",
        "    if false then",
        seed=1039,
    ),
    Bug(
        "a writer that leaves wakes no reader",
        "lua/release.lua",
        "    drop_overdue(queue, waiters, now_us)\n    wake_reader(lock, queue, waiters, nil)\n",
        "    drop_overdue(queue, waiters, now_us)\n",
        seed=2419,
    ),
    Bug(
        "any reader may have the lock beside a writer of its client",
        "lua/_lib/readers.lua",
        "  return uuid == stem and string.gsub(",
        "  return string.gsub(",
        seed=1795,
    ),
    Bug(
        "a downgrade ends the writer's hold first",
        f"{CORE}/readers.py",
        "    outcome = yield from acquire_read(calls, reader, reading, who, hold.deadline, count=levels)\n",
        (
            "    yield from calls.release(writer, spec, who, levels=0)\n"
            "    outcome = yield from acquire_read(calls, reader, reading, who, hold.deadline, count=levels)\n"
            "    return outcome\n"
        ),
        seed=1195,
    ),
    Bug(
        "the lock is handed over while readers remain",
        "lua/read_release.lua",
        "    if redis.call('EXISTS', lock) == 1 then\n",
        "    if false then\n",
        seed=1039,
    ),
    Bug(
        "a lock's keys end with the wrong reader's lease",
        "lua/_lib/readers.lua",
        "redis.call('ZREVRANGE', leases, 0, 0, 'WITHSCORES')[2]",
        "redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')[2]",
        seed=1844,
    ),
    Bug(
        "a reader may ask to write",
        f"{CORE}/own.py",
        "    if not spec.is_shared:\n",
        "    if not spec.is_shared:\n        return ALONE\n    if False:\n",
        seed=1027,
    ),
    Bug(
        "a reader's token may be below that of its own hold as a writer",
        f"{CORE}/own.py",
        "    if not hold.settled and spec.quorum > 1:\n",
        "    if False:\n",
        seed=8122,
    ),
    Bug(
        "a reader is healed beside another owner's writer",
        "lua/read_heal.lua",
        "if writer and not is_own(writer, owner) then",
        "if false then",
        seed=8529,
    ),
    Bug(
        "a writer is healed beside readers",
        "lua/heal.lua",
        "if holder and not is_here then",
        "if holder and not is_here and not is_reader(holder) then",
        seed=1795,
    ),
    Bug(
        "a reader that gets in wakes nobody",
        "lua/_lib/take_read.lua",
        ("  if not writer and redis.call('EXISTS', queue) == 1 then\n    wake_reader(lock, queue, waiters, nil)\n"),
        "  if false then\n",
        seed=1844,
    ),
    Bug(
        "an interrupted downgrade leaves the writer's hold",
        f"{CORE}/readers.py",
        "    record.members = [writer]  # from",
        "    record.members = []  # from",
        seed=5964,
    ),
    Bug(
        "an interrupted downgrade keeps the reader's levels",
        f"{CORE}/readers.py",
        "    record.members = [reader]  # Note",
        "    record.members = []  # Note",
        seed=4862,
    ),
    Bug(
        "several levels become one by a downgrade",
        f"{CORE}/readers.py",
        "hold.deadline, count=levels)",
        "hold.deadline, count=1)",
        seed=1039,
    ),
    Bug(
        "a reader's undone attempt stays",
        "lua/read_give_back.lua",
        "local ended = redis.pcall('HDEL', lock, owner) == 1\nredis.pcall('ZREM', leases, owner)\n",
        "do\n  return 'absent ' .. now\nend\nlocal ended = redis.pcall('HDEL', lock, owner) == 1\n",
        seed=1027,
    ),
    Bug(
        "the last reader wakes nobody",
        "lua/read_release.lua",
        "    else\n      wake_first(lock, queue, waiters, nil)\n",
        "    else\n      local _ = 0\n",
        seed=1620,
    ),
    Bug(
        "a reader's token is not above the last",
        "lua/_lib/take_read.lua",
        "next_token(token_key, now_us, latest_ms(lock, lease_ms))",
        "now_us",
        seed=1271,
    ),
    # Only runs in which callers run into deadlocks find these.
    Bug(
        "a ring counts though no second round has found it",
        f"{RUNTIME}/background/chase.py",
        "if key in self._found_before:",
        "if True:",
        seed=17051,  # no seed that the test plays finds it
    ),
    Bug(
        "each client takes the wait of its own caller for the victim",
        f"{CORE}/deadlocks.py",
        "key=lambda edge: (edge.order, edge.waiter), default=None)",
        "key=lambda edge: (edge.since, edge.waiter), default=None)",
        seed=1609,
    ),
    Bug(
        "a wait that is over is told to clients that ask",
        f"{RUNTIME}/background/chase.py",
        "        edge = self._own().get(hold)\n",
        (
            "        told = vars(self).setdefault('told', {})\n"
            "        edge = told[hold] = self._own().get(hold) or told.get(hold)\n"
        ),
        seed=1407,
    ),
    Bug(
        "a hold that was lost is part of a ring",
        f"{CORE}/deadlocks.py",
        "if hold.loss is None and now < hold.deadline and now < wait.until:",
        "if now < wait.until:",
        seed=1385,
    ),
    Bug(
        "a wait that got its lock stays in the book of waits",
        f"{CORE}/calls.py",
        "        host.waits.pop(record, None)\n        if outcome",
        "        if outcome",
        seed=1032,
    ),
    Bug(
        "a short wait is part of a ring",
        f"{CORE}/deadlocks.py",
        "is_short = until - since <= host.deadlock_after",
        "is_short = False",
        seed=1147,
    ),
    Bug(
        "a ring has a victim though another caller could release the hold",
        f"{CORE}/deadlocks.py",
        "    if not all(edge.is_sure for edge in ring):\n        return None\n",
        "",
        seed=1016,
    ),
    Bug(
        "a client looks for a ring among its callers only after a while",
        f"{CORE}/calls.py",
        "            if len(host.holds) > 1:\n                check_ring(host, record)\n\n    def _go",
        "\n    def _go",
        seed=1613,
    ),
    Bug(
        "a victim sleeps on",
        f"{CORE}/deadlocks.py",
        "            record.error = error  # Mark",
        "            pass  # Mark",
        seed=1365,
    ),
    Bug(
        "a client looks once for a ring",
        f"{RUNTIME}/background/chase.py",
        "self._began_at + REPEAT_SECONDS for at in due",
        "FOREVER for at in due",
        seed=2857,
    ),
    # Only runs in which clients are closed, or end with their processes, find these.
    Bug(
        "what is pending when a client is closed is left to leases",
        f"{RUNTIME}/background/janitor.py",
        "return now >= self._closes_by or (not pending and self._incoming.empty())",
        "return True",
        seed=1060,
    ),
    Bug(
        "what is pending at the end of a process is left to leases",
        f"{RUNTIME}/session/closing.py",
        "        _finish(session)\n    finally:",
        "        pass\n    finally:",
        seed=1105,
    ),
    # Only runs in which the lock rests after a release find these.
    Bug(
        "a lock that is released too early does not rest",
        f"{CORE}/calls.py",
        "ending = hold.ending_at(sent_at) if hold.at_least else hold.ending",
        "ending = hold.ending",
        seed=1006,
    ),
    Bug(
        "the undo of an interrupted release leaves no rest",
        f"{CORE}/host.py",
        "return task._replace(rest_until=hold.rest_until) if hold.at_least else task",
        "return task",
        seed=2580,
    ),
    Bug(
        "a rest has no end",
        "lua/rest.lua",
        "    redis.call('PEXPIRE', lock, rest_ms) -- shortens",
        "    -- shortens",
        seed=1006,
    ),
]
