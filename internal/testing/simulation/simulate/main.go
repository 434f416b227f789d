// Command simulate plays random schedules of dispatchers and of listeners, each for so long, and joins their accounts.
// make simulate runs it, in the root of the repository.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/outboxgen/outboxgen/internal/testing/simulation"
)

// folders are those of the packages, by the names of their machines.
var folders = []struct{ machine, folder string }{
	{"dispatcher", "queue/internal/core/simtest"},
	{"listener", "listener/internal/core/simtest"},
}

func main() { os.Exit(run()) }

func run() int {
	machine := flag.String("machine", "", "play only this one: dispatcher or listener")
	keep := flag.Bool("keep", false, "keep what fails as a test")
	flag.Parse()
	bin, err := os.MkdirTemp("", "simulate")
	if err != nil {
		return fail(err)
	}
	defer func() { _ = os.RemoveAll(bin) }()
	var players []*player
	for _, f := range folders {
		if *machine != "" && *machine != f.machine {
			continue
		}
		p := &player{path: filepath.Join(bin, f.machine+".exe"), args: flag.Args()}
		if *keep {
			p.args = append([]string{"-keep", filepath.Join(f.folder, simulation.Kept)}, p.args...)
		}
		build := exec.Command(cmp.Or(os.Getenv("GO"), "go"), "build", "-o", p.path, "./"+f.folder+"/simulate")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fail(fmt.Errorf("build %s: %w", f.folder, err))
		}
		players = append(players, p)
	}
	if len(players) == 0 {
		return fail(fmt.Errorf("%q is not a machine", *machine))
	}
	var all sync.WaitGroup
	for _, p := range players {
		all.Go(p.run)
	}
	all.Wait()
	return report(players)
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "simulate:", err)
	return 2
}

// player is the command of a machine.
type player struct {
	path string
	args []string
	out  bytes.Buffer
	err  error
}

func (p *player) run() {
	c := exec.Command(p.path, p.args...)
	c.Stdout, c.Stderr = &p.out, os.Stderr
	p.err = c.Run()
}

// report prints what the players have said, and the sum of their accounts as the last line.
func report(players []*player) (status int) {
	var sum simulation.Account
	counted := false
	for _, p := range players {
		lines := strings.Split(strings.TrimSpace(p.out.String()), "\n")
		last := lines[len(lines)-1]
		var a simulation.Account
		if json.Unmarshal([]byte(last), &a) == nil && a.Schedules > 0 {
			lines, counted = lines[:len(lines)-1], true
		}
		fmt.Println(strings.Join(lines, "\n"))
		sum.Schedules, sum.Steps, sum.Violations = sum.Schedules+a.Schedules, sum.Steps+a.Steps, sum.Violations+a.Violations
		sum.Controls, sum.Found = sum.Controls+a.Controls, sum.Found+a.Found
		if p.err != nil {
			status = 1
		}
	}
	if counted {
		fmt.Printf("schedules=%d steps=%d violations=%d controls=%d/%d\n", sum.Schedules, sum.Steps, sum.Violations, sum.Found, sum.Controls)
	}
	return status
}
