// Locks of Node's libraries, as a program of the benchmark: lines of JSON in on stdin, and out on stdout.
//
// The first line is the job: {"contestant", "urls", "name", "threads", "section_seconds", "first_worker", …}. The answer
// is {"ready": true}. Then orders: {"begin_ns", "until_ns"} is answered with all turns, {"pairs"} with how long so many
// uncontended pairs took. It ends when stdin is closed.

import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { createRequire } from 'node:module';
import Redis from 'ioredis';
import { Mutex, RedlockMutex } from 'redis-semaphore';

const Redlock = createRequire(import.meta.url)('redlock').default; // its package names no module for import
const LEASE_MS = 10_000;
const FOREVER = { acquireTimeout: Infinity, lockTimeout: LEASE_MS };
const now = () => Number(process.hrtime.bigint()); // CLOCK_MONOTONIC, as everybody's

const lockers = {
  'redis-semaphore (Node)': (clients, name) =>
    clients.length > 1 ? new RedlockMutex(clients, name, FOREVER) : new Mutex(clients[0], name, FOREVER),
  'redlock (Node)': (clients, name) => {
    const redlock = new Redlock(clients, { retryCount: -1 });
    let lock;
    return {
      acquire: async () => { lock = await redlock.acquire([name], LEASE_MS); },
      release: () => lock.release(),
    };
  },
};

async function takeTurns(locker, worker, { begin_ns, until_ns }, sectionMs, turns) {
  await sleep(Math.max(0, (begin_ns - now()) / 1e6));
  let releasing = 0;
  while (releasing < until_ns) {
    await locker.acquire();
    const acquired = now();
    if (sectionMs) await sleep(sectionMs);
    releasing = now();
    await locker.release();
    turns.push([worker, acquired, releasing, 0]);
  }
}

async function takePairs(locker, count) {
  const begin = now();
  for (let i = 0; i < count; i += 1) {
    await locker.acquire();
    await locker.release();
  }
  return { ns: now() - begin };
}

async function obey(order, job, workers) {
  if (order.pairs) return takePairs(workers[0], order.pairs);
  const turns = [];
  const sectionMs = job.section_seconds * 1000;
  await Promise.all(workers.map((locker, i) => takeTurns(locker, job.first_worker + i, order, sectionMs, turns)));
  return { turns, failed: null };
}

const tell = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const job = JSON.parse((await lines.next()).value);
const clients = job.urls.map((url) => new Redis(url));
await Promise.all(clients.map((client) => client.ping()));
const workers = Array.from({ length: job.threads }, () => lockers[job.contestant](clients, job.name));
await takePairs(workers[0], 1); // connected, and its scripts are loaded
tell({ ready: true });
for await (const line of { [Symbol.asyncIterator]: () => lines }) {
  try {
    tell(await obey(JSON.parse(line), job, workers));
  } catch (error) {
    tell({ turns: [], failed: String(error) });
  }
}
process.exit(0);
