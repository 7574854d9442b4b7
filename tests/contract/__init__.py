"""The contract of a driver, proven: one suite, run on every driver there is.

What a driver promises stands in `relock._core.effects`. Each test here holds one of these promises, and is written once
against a `Rig` (`contract.rigs.rig`). It runs

* on threads, over real servers on loopback with a proxy before each (`contract.rigs.threads`);
* on the simulator's platform, over virtual masters in virtual time (`contract.rigs.virtual`);

with one master and with three. A test is itself a thread of its rig. A driver that comes later brings a rig, and no
tests.

What holds the tests together is the *step*: each moment at which the driver asks something of its platform (the clock,
a queue, an event, a poller, a channel, another thread). Between two steps a driver waits for nobody, so what others do
meanwhile might as well happen at the next one. `contract.rigs.watch` sees every step of one thread. A test does what
it is about at the first step; then, in another run, at the second; and so on until a run comes to its end before:

* `test_interrupts`: an exception is raised there. A call that was interrupted has done nothing, or what it did is
  undone; a release is carried out; nothing is renewed for nobody, and nobody is kept waiting. The same while the driver
  is blocked: by a signal, or thrown into the virtual thread.
* `test_watchdog`: the watchdog ticks there, with every renewal due; or the hold ends in the middle of a tick.
* `test_waiting`: the lock is given back there, up to the very last step before the wait; the message is not lost. And
  each wait has a timer that ends in time: what is judged is for how long the driver *asks* to wait, so a slow machine
  changes nothing.

Two more kinds need no steps, but lines that can hold a request or a reply:

* `test_late_and_lost`: requests and replies that are lost or come late.
* `test_order`: replies in every order; late ones before the reply to the next request; scripts that others have passed.

Nothing sleeps and hopes. Where a node timeout has to pass it is a short one, and no test fails if it passes too soon.
"""
