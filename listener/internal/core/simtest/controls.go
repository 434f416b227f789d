package simtest

import "github.com/outboxgen/outboxgen/internal/testing/simulation"

// controls are the guards that can be left out: of the tables, which lacks asks for in tables.go, and of the shell.
var controls = []simulation.Control{
	{Name: "take-lease", What: "a lease is taken that another process holds"},
	{Name: "fence-of-end", What: "the end of a lease does not compare its number"},
	{Name: "fence-of-charge", What: "the count of an attempt does not compare its lease", Seed: 90},
	{Name: "fence-of-renewal", What: "a renewal does not compare its lease", Seed: 29},
	{Name: "take-flush", What: "a lease does not wait for the disk", Seed: 65},
	{Name: "straggler", What: "a window begins behind the highest event, not behind a snapshot"},
	{Name: "commit", What: "a window has events that are not committed"},
	{Name: "ahead", What: "what was handled ahead of the cursor is not remembered", Seed: 9},
	{Name: "close", What: "a window that is done does not move the cursor"},
	{Name: "dead-letter", What: "a dead event gets no dead letter"},
	{Name: "parking", What: "what is parked is not kept"},
	{Name: "parked-key", What: "events of a parked key are handled"},
	{Name: "promote", What: "the next event of a parked key is not made due"},
	{Name: "one-by-one", What: "a crash is not noted, so its events are handled together again"},
	{Name: "charge", What: "an attempt that may kill is not counted before"},
	{Name: "parked-charge", What: "an attempt at a parked event that may kill is not counted before"},
	{Name: "parked-alone", What: "a parked event that may kill is handled with others, because the log was handled since", Seed: 1795922119085802},
	{Name: "retry-count", What: "failed attempts are not counted"},
	{Name: "release-at-end", What: "a process that stops does not end its leases"},
	{Name: "barrier", What: "shards change before all have come to the barrier"},
	{Name: "transaction", What: "handlers take effect although the lease is lost"},
	{Name: "ring", What: "an enqueue does not ring"},
	{Name: "renewal", What: "a renewal changes nothing"},
	{Name: "deadline", What: "a lease is counted from its answer on, and twice", Seed: 11},
	{Name: "stop-handlers", What: "handlers are not told that the lease is lost"},
	{Name: "untried", What: "a try that the rate did not allow counts as under way", Seed: 83},
	{Name: "timer", What: "one of ten timers does not fire"},
}
