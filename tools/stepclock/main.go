// Command stepclock makes an overlay for the go command with which the wall clocks of worker processes of the campaign of
// limits jump, and prints its path:
//
//	go test -overlay "$(cd tools && go run ./stepclock DIR)" ./queue
//
// Only time.Now differs. Its monotonic part is right, as that of a machine whose clock is set.
package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

//go:embed step.go.txt
var step []byte

// reads is the line of time.Now that reads the clocks, in Go 1.23 and later.
var reads = regexp.MustCompile(`(?m)^\tsec, nsec, mono := (runtimeN|n)ow\(\)$`)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: stepclock DIR")
		os.Exit(2)
	}
	path, err := overlay(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "stepclock:", err)
		os.Exit(1)
	}
	fmt.Println(path)
}

// overlay writes the overlay into dir, and returns its path.
func overlay(dir string) (string, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("find GOROOT: %w", err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	std := filepath.Join(strings.TrimSpace(string(out)), "src", "time")
	source, err := os.ReadFile(filepath.Join(std, "time.go"))
	if err != nil {
		return "", err
	}
	if len(reads.FindAll(source, -1)) != 1 {
		return "", errors.New("time.Now of this version of Go reads the clocks in another way")
	}
	files := map[string][]byte{
		"time.go": reads.ReplaceAll(source, []byte("$0\n\tsec += stepOf(mono)")),
		"step.go": step,
	}
	replace := make(map[string]string)
	for name, text := range files {
		replace[filepath.Join(std, name)] = filepath.Join(dir, name)
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, text, 0o644)
}
