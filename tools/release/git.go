package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// git runs git in a folder.
type git struct{ dir string }

// run returns what a git command prints. Its error has the first line that git printed.
func (g git) run(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = g.dir
	cmd.Stdin = strings.NewReader(input)
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	if err := cmd.Run(); err != nil {
		message, _, _ := strings.Cut(strings.TrimSpace(messages.String()), "\n")
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, message)
	}
	return out.String(), nil
}

// line returns what a git command prints, without the end of the line.
func (g git) line(ctx context.Context, args ...string) (string, error) {
	out, err := g.run(ctx, "", args...)
	return strings.TrimSpace(out), err
}

// lines returns the lines that a git command prints.
func (g git) lines(ctx context.Context, args ...string) ([]string, error) {
	out, err := g.run(ctx, "", args...)
	return strings.FieldsFunc(out, func(r rune) bool { return r == '\n' }), err
}

// command runs another command in a folder, and shows what it prints.
func command(ctx context.Context, dir string, log io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}
