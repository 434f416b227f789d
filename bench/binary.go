package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// binarySize measures what topics add to a program that has pgx already. Figures of different runs are equal.
func binarySize() workload {
	program := func(name string, uses uses, flags ...string) contender {
		return contender{name, func(ctx context.Context, _ *database) (float64, error) { return linked(ctx, uses, flags...) }}
	}
	const strip = "-ldflags=-s -w"
	return workload{
		name: "binary", title: "what 10 topics add to a binary", unit: "MB", lessIsBetter: true,
		about: "A program that connects with pgxpool and runs one transaction, the same program that also enqueues an event of each " +
			"of ten topics with five fields, and the same that handles them too. Stripped: built with -ldflags='-s -w'.",
		contenders: []contender{
			program("pgx alone", uses{}), program("enqueues", uses{enqueue: true}),
			program("enqueues and handles", uses{enqueue: true, handle: true}),
			program("pgx alone, stripped", uses{}, strip), program("enqueues, stripped", uses{enqueue: true}, strip),
			program("enqueues and handles, stripped", uses{enqueue: true, handle: true}, strip),
		},
		targets: []target{
			{of: "enqueues", to: "pgx alone", atMost: 1, difference: true},
			{of: "enqueues and handles", to: "pgx alone", atMost: 1, difference: true},
			{of: "enqueues, stripped", to: "pgx alone, stripped", atMost: 1, difference: true},
			{of: "enqueues and handles, stripped", to: "pgx alone, stripped", atMost: 1, difference: true},
		},
	}
}

// uses are the parts of a generated package that a program uses.
type uses struct{ enqueue, handle bool }

// linked returns the size of a program, in megabytes.
func linked(ctx context.Context, u uses, flags ...string) (size float64, err error) {
	dir, err := os.MkdirTemp(".", "linked")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Mkdir(filepath.Join(dir, "events"), 0o700); err != nil {
		return 0, err
	}
	const topics = 10
	if err := generateInto(filepath.Join(dir, "events"), topics); err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(u.program(dir, topics)), 0o600); err != nil {
		return 0, err
	}
	binary := filepath.Join(dir, "program")
	args := append(append([]string{"build", "-o", binary}, flags...), "./"+dir)
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("%w\n%s", err, out)
	}
	info, err := os.Stat(binary)
	if err != nil {
		return 0, err
	}
	return float64(info.Size()) / 1e6, nil
}

// program returns the source of the program, whose generated package is in folder dir of this module.
func (u uses) program(dir string, topics int) string {
	var imports, enqueues, handles strings.Builder
	if u.enqueue {
		fmt.Fprintf(&imports, "\t\"github.com/outboxgen/outboxgen/bench/%s/events\"\n", filepath.Base(dir))
		for n := range topics {
			fmt.Fprintf(&enqueues, "\t\tif _, err := events.EnqueueT%d(ctx, tx, events.T%d{}); err != nil {\n\t\t\treturn err\n\t\t}\n", n, n)
		}
	}
	if u.handle {
		imports.WriteString("\t\"github.com/outboxgen/outboxgen/queue\"\n")
		handles.WriteString("\td, err := events.NewN0Dispatcher(pool, &events.N0Handler{}, queue.Config{})\n" +
			"\tif err == nil {\n\t\terr = d.Run(ctx)\n\t}\n\tif err != nil {\n\t\tlog.Fatal(err)\n\t}\n")
	}
	return `package main

import (
	"context"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
` + imports.String() + `)

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
` + enqueues.String() + `		_, err := tx.Exec(ctx, "SELECT 1")
		return err
	}); err != nil {
		log.Fatal(err)
	}
` + handles.String() + `}
`
}
