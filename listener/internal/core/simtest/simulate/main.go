// Command simulate plays random schedules of shards of listeners. make simulate runs it.
package main

import (
	"os"

	"github.com/outboxgen/outboxgen/internal/testing/simulation"
	"github.com/outboxgen/outboxgen/listener/internal/core/simtest"
)

func main() { os.Exit(simulation.Main(simtest.Machine())) }
