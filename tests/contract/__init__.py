"""The contract of a driver as one suite of tests, which runs on every driver.

`relock._core.effects` says what a driver promises. Each test here holds one of these promises, and is written once
against a `Rig` (`contract.rigs.rig`). The tests run

* on threads, over real servers on loopback with a proxy before each (`contract.rigs.threads`);
* on the tasks of event loops, over the same servers (`contract.rigs.aio`);
* on the simulator's platform, over virtual masters in virtual time: on threads (`contract.rigs.virtual`), and on tasks
  (`contract.rigs.aio_virtual`);

with one master and with three. A test is itself a thread of its rig. A new driver brings a rig, and no tests.

The tests have the *step* in common: each moment at which the driver asks something of its platform (the clock, a queue,
an event, a poller, a channel, another thread). Between two steps a driver waits for nothing, so whatever other threads
do there has the same effect as at the next step. `contract.rigs.watch` sees every step of one thread. A test acts at
the first step; then, in another run, at the second one; and so on, until a run ends before it reaches the step:

* `test_interrupts` raises an exception there. An interrupted call has no effect, or its effect is undone; a release is
  carried out; no hold without an owner is renewed, and no caller is kept waiting. The same is tested while the driver
  is blocked: by a signal, or by an exception that is thrown into the virtual thread.
* `test_watchdog` lets the watchdog tick there, with every renewal due; or ends the hold in the middle of a tick.
* `test_waiting` releases the lock there, up to the last step before the wait; the message is not lost. It also checks
  that each wait ends in time. It judges for how long the driver *asks* to wait, so a slow machine changes nothing.

Two more kinds of tests need no steps, but lines that can hold a request or a reply back:

* `test_late_and_lost`: requests and replies that are lost or come late.
* `test_order`: replies in every order; late replies before the reply to the next request; scripts that later ones have
  passed.

`test_multi` and `test_multi_stuck` hold the same promises for several locks that are taken as one.

No test sleeps and hopes. A node timeout that must pass is short, and no test fails if it passes too soon.
"""
