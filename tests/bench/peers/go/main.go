// Locks of Go's libraries, as a program of the benchmark: lines of JSON in on stdin, and out on stdout.
//
// The first line is the job. The answer is {"ready": true}. Then orders: {"begin_ns", "until_ns"} is answered with all
// turns, {"pairs"} with how long so many uncontended pairs took. It ends when stdin is closed.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"golang.org/x/sys/unix"
)

const lease = 10 * time.Second

type job struct {
	Contestant     string
	URLs           []string
	Name           string
	Threads        int
	SectionSeconds float64 `json:"section_seconds"`
	FirstWorker    int     `json:"first_worker"`
}

type order struct {
	BeginNs int64 `json:"begin_ns"`
	UntilNs int64 `json:"until_ns"`
	Pairs   int
}

type turn [4]int64

// locker is one worker's lock; acquire returns what releases it.
type locker func(context.Context) (release func() error, err error)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	var do job
	lines.Scan()
	must(json.Unmarshal(lines.Bytes(), &do))
	lockers := enter(do)
	_, err := takePairs(lockers[0], 1) // connected, and its scripts are loaded
	must(err)
	tell(map[string]any{"ready": true})
	for lines.Scan() {
		var next order
		must(json.Unmarshal(lines.Bytes(), &next))
		tell(obey(next, do, lockers))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func tell(what any) {
	text, err := json.Marshal(what)
	must(err)
	fmt.Println(string(text))
}

// now is CLOCK_MONOTONIC, as everybody's.
func now() int64 {
	var at unix.Timespec
	must(unix.ClockGettime(unix.CLOCK_MONOTONIC, &at))
	return at.Nano()
}

func obey(next order, do job, lockers []locker) any {
	if next.Pairs > 0 {
		ns, err := takePairs(lockers[0], next.Pairs)
		return map[string]any{"ns": ns, "failed": said(err)}
	}
	turns := make([][]turn, len(lockers))
	errs := make([]error, len(lockers))
	var all sync.WaitGroup
	for i := range lockers {
		all.Go(func() { turns[i], errs[i] = takeTurns(lockers[i], int64(do.FirstWorker+i), next, do.SectionSeconds) })
	}
	all.Wait()
	together := []turn{}
	for _, some := range turns {
		together = append(together, some...)
	}
	for _, err := range errs {
		if err != nil {
			return map[string]any{"turns": together, "failed": said(err)}
		}
	}
	return map[string]any{"turns": together, "failed": nil}
}

func said(err error) any {
	if err == nil {
		return nil
	}
	return err.Error()
}

func takeTurns(acquire locker, worker int64, hours order, sectionSeconds float64) (turns []turn, err error) {
	time.Sleep(time.Duration(hours.BeginNs - now()))
	for releasing := int64(0); releasing < hours.UntilNs; {
		release, err := acquire(context.Background())
		if err != nil {
			return turns, err
		}
		acquired := now()
		if sectionSeconds > 0 {
			time.Sleep(time.Duration(sectionSeconds * float64(time.Second)))
		}
		releasing = now()
		if err := release(); err != nil {
			return turns, err
		}
		turns = append(turns, turn{worker, acquired, releasing, 0})
	}
	return turns, nil
}

func takePairs(acquire locker, count int) (int64, error) {
	begin := now()
	for range count {
		release, err := acquire(context.Background())
		if err != nil {
			return 0, err
		}
		if err := release(); err != nil {
			return 0, err
		}
	}
	return now() - begin, nil
}

// enter makes the workers' locks. They share a client, or one for each master.
func enter(do job) []locker {
	fresh := map[string]func(job) func() locker{
		"redsync (Go)":     withRedsync,
		"redislock (Go)":   withRedislock,
		"rueidislock (Go)": withRueidislock,
	}[do.Contestant](do)
	lockers := []locker{}
	for range do.Threads {
		lockers = append(lockers, fresh())
	}
	return lockers
}

func clients(do job) []*redis.Client {
	made := []*redis.Client{}
	for _, url := range do.URLs {
		options, err := redis.ParseURL(url)
		must(err)
		client := redis.NewClient(options)
		must(client.Ping(context.Background()).Err())
		made = append(made, client)
	}
	return made
}

func withRedsync(do job) func() locker {
	pools := []redsyncredis.Pool{}
	for _, client := range clients(do) {
		pools = append(pools, goredis.NewPool(client))
	}
	sync := redsync.New(pools...)
	return func() locker {
		mutex := sync.NewMutex(do.Name, redsync.WithExpiry(lease), redsync.WithTries(1<<30))
		return func(ctx context.Context) (func() error, error) {
			return func() error { _, err := mutex.Unlock(); return err }, mutex.LockContext(ctx)
		}
	}
}

func withRedislock(do job) func() locker {
	client := redislock.New(clients(do)[0])
	options := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)} // as in its README
	return func() locker {
		return func(ctx context.Context) (func() error, error) {
			within, cancel := context.WithTimeout(ctx, time.Hour) // without a deadline it gives up after the lease
			defer cancel()
			lock, err := client.Obtain(within, do.Name, lease, options)
			return func() error { return lock.Release(ctx) }, err
		}
	}
}

func withRueidislock(do job) func() locker {
	option, err := rueidis.ParseURL(do.URLs[0])
	must(err)
	all, err := rueidislock.NewLocker(rueidislock.LockerOption{ClientOption: option, KeyMajority: 1, KeyValidity: lease})
	must(err)
	return func() locker {
		return func(ctx context.Context) (func() error, error) {
			_, cancel, err := all.WithContext(ctx, do.Name)
			return func() error { cancel(); return nil }, err
		}
	}
}
