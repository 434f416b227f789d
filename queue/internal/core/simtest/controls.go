package simtest

import "github.com/outboxgen/outboxgen/internal/testing/simulation"

// controls are the guards that can be left out: of the tables, which lacks asks for in table.go, turns.go and settle.go, and of
// the shell.
var controls = []simulation.Control{
	{Name: "claim-lease", What: "a claim takes events whose lease holds"},
	{Name: "claim-lock", What: "a claim takes events that another one has locked"},
	{Name: "claim-due", What: "a claim takes events that are not due"},
	{Name: "claim-attempts", What: "a claim does not count attempts"},
	{Name: "claim-paused", What: "a claim takes what is paused"},
	{Name: "claim-version", What: "a claim takes versions that its process does not know"},
	{Name: "claim-flush", What: "a claim does not wait for the disk", Seed: 5},
	{Name: "fence-of-ack", What: "an ack does not compare its claim", Seed: 121},
	{Name: "fence-of-nack", What: "a nack does not compare its claim", Seed: 828},
	{Name: "fence-of-release", What: "a release does not compare its claim", Seed: 214},
	{Name: "fence-of-extend", What: "a renewal does not compare its claim", Seed: 1625},
	{Name: "settle-once", What: "a claim that is over settles once more"},
	{Name: "nack-last", What: "the last failure does not make a dead letter"},
	{Name: "nack-permanent", What: "a permanent failure does not make a dead letter"},
	{Name: "release-attempt", What: "a release counts the attempt"},
	{Name: "release-at-end", What: "a process that stops releases nothing", Seed: 11},
	{Name: "sweep", What: "nothing sweeps"},
	{Name: "sweep-lease", What: "a sweep takes events whose lease holds"},
	{Name: "limit", What: "a claim does not count what is running"},
	{Name: "limit-lock", What: "a claim counts before the lock of others is gone", Seed: 1383},
	{Name: "limit-rate", What: "a claim does not count what has started", Seed: 185},
	{Name: "limit-late", What: "a claim does not look for leases that ran out behind what it meets", Seed: 1754},
	{Name: "commit", What: "events are visible before their commit"},
	{Name: "inbox", What: "a consumer does not look into its inbox"},
	{Name: "ring", What: "an enqueue does not ring"},
	{Name: "settlements", What: "what a pass settles is not settled"},
	{Name: "renewal", What: "a renewal changes nothing"},
	{Name: "lost", What: "a handler is not told that its lease is lost", Seed: 1237},
	{Name: "deadline", What: "a lease is counted from its answer on, and longer"},
	{Name: "start-by", What: "a worker begins whatever the time", Seed: 1779},
	{Name: "recall", What: "what was recalled begins nevertheless"},
	{Name: "run-once", What: "a task is given out twice"},
	{Name: "result", What: "a failure is reported as a success"},
	{Name: "timer", What: "one of ten timers does not fire"},
}
