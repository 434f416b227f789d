// Command release tags a release of all modules of this repository, and packs one as a module proxy for a rehearsal.
// The Makefile calls it; docs/inside/releasing.md says what it is for.
//
//	release [-checks "test verify"] VERSION   checks, commits and tags; pushes nothing
//	rehearse FOLDER                           releases in a clone, and packs what users would get into FOLDER/proxy
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: release [-checks TARGETS] VERSION, or rehearse FOLDER")

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	checks := flags.String("checks", "test verify", "targets of the Makefile that must pass, or none")
	if err := flags.Parse(args[1:]); err != nil || flags.NArg() != 1 {
		return errUsage
	}
	top, err := git{dir: "."}.line(ctx, "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	switch args[0] {
	case "release":
		r := release{repo: git{dir: top}, version: flags.Arg(0), now: time.Now(), log: os.Stderr}
		if *checks != "none" {
			r.checks = strings.Fields(*checks)
		}
		if err := r.run(ctx); err != nil {
			return fmt.Errorf("release %s: %w", r.version, err)
		}
		fmt.Println(r.pushCommand())
		return nil
	case "rehearse":
		packed, err := rehearse(ctx, git{dir: top}, flags.Arg(0), os.Stderr)
		if err != nil {
			return fmt.Errorf("rehearse: %w", err)
		}
		for _, p := range packed {
			fmt.Printf("%8.1f KB %5d files  %s@%s\n", float64(p.size)/1000, p.files, p.module, p.version)
		}
		return nil
	}
	return errUsage
}
