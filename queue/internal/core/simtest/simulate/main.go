// Command simulate plays random schedules of dispatchers. make simulate runs it.
package main

import (
	"os"

	"github.com/outboxgen/outboxgen/internal/testing/simulation"
	"github.com/outboxgen/outboxgen/queue/internal/core/simtest"
)

func main() { os.Exit(simulation.Main(simtest.Machine())) }
