package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxgen/outboxgen/generator/diag"
)

func (a *app) vetCommand() *cobra.Command {
	var format, tags string
	c := &cobra.Command{
		Use:   "vet [packages]",
		Short: "Find mistakes with enqueues and operations in Go code",
		Long: `vet reads Go packages, ./... by default, and finds what compiles but is probably wrong:

  outboxowned  an event of an operation is enqueued outside the operation
  outboxerr    the error of an enqueue, of an outcome or of an operation is discarded
  outboxzero   a zero outcome is returned without an error, so that the operation rolls back

It does not look at tests or generated code. If the finding outboxowned is not a mistake, write a
comment "//outboxgen:allow REASON" on the line or above it.

The packages are those of go vet, and must compile. Use outboxgen as a tool of go vet to combine it with
other flags: go vet -vettool=$(go tool -n outboxgen) ./...

It exits with 1 if there are findings, and with 2 if a package cannot be read or does not compile.`,
		Example: "  outboxgen vet\n  outboxgen vet --format github-actions ./internal/...",
		RunE: run(func(ctx context.Context, packages []string) error {
			return a.vet(ctx, format, tags, packages)
		}),
	}
	c.Flags().StringVar(&format, "format", string(diag.Text), "`format` of findings: "+formatList())
	// fails only for an undefined flag
	_ = c.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions(words(diag.Formats()), cobra.ShellCompDirectiveNoFileComp))
	c.Flags().StringVar(&tags, "tags", "", "build `tags`, as of go build")
	return c
}

// vet calls go vet with this program as its tool, so that packages are found, built and cached as always.
func (a *app) vet(ctx context.Context, format, tags string, packages []string) error {
	chosen, err := diag.ParseFormat(format)
	if err != nil {
		return usage(fmt.Errorf("--format: %w", err))
	}
	for _, p := range packages {
		if strings.HasPrefix(p, "-") { // after "--"; go vet would take it as a flag
			return usage(fmt.Errorf("%q is not a package", p))
		}
	}
	if len(packages) == 0 {
		packages = []string{"./..."}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := append([]string{"vet", "-json", "-vettool=" + self, "-tags=" + tags}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	var out, failure bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failure
	if err := cmd.Run(); err != nil {
		if !errors.As(err, new(*exec.ExitError)) {
			return fmt.Errorf("run go vet: %w", err)
		}
		_, _ = a.Stderr.Write(failure.Bytes()) // a note that cannot be written does not fail the command
		return usage(errors.New("vet: a package cannot be read or does not compile"))
	}
	found, err := vetFindings(out.Bytes())
	if err != nil {
		return fmt.Errorf("read the findings of go vet: %w", err)
	}
	if err := a.findings(found, chosen); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(struct{}{})
	}
	return nil
}

// vetFindings reads the output of go vet -json: for each package an object with a list of findings for each analyzer.
// Between the objects there may be lines that start with "#".
func vetFindings(out []byte) (diag.List, error) {
	var objects bytes.Buffer
	for line := range bytes.Lines(out) {
		if !bytes.HasPrefix(line, []byte("#")) {
			objects.Write(line)
		}
	}
	folder, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	var found diag.List
	for dec := json.NewDecoder(&objects); dec.More(); {
		var packages map[string]map[string]json.RawMessage
		if err := dec.Decode(&packages); err != nil {
			return nil, err
		}
		for _, analyzers := range packages {
			for name, result := range analyzers {
				var list []struct{ Posn, Message string }
				if err := json.Unmarshal(result, &list); err != nil {
					return nil, fmt.Errorf("%s: %s", name, result)
				}
				for _, f := range list {
					found = append(found, diag.Diagnostic{
						Pos: vetPos(f.Posn, folder), Rule: diag.Rule(name), Message: f.Message, Severity: diag.Error,
					})
				}
			}
		}
	}
	found.Sort()
	return found, nil
}

// vetPos reads file:line:column. It shows files below folder relative to it.
func vetPos(text, folder string) diag.Pos {
	file, column := cutNumber(text)
	file, line := cutNumber(file)
	if relative, err := filepath.Rel(folder, file); err == nil && filepath.IsLocal(relative) {
		file = relative
	}
	return diag.Pos{File: file, Line: line, Column: column}
}

// cutNumber cuts the number behind the last colon off text.
func cutNumber(text string) (before string, n int) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return text, 0
	}
	n, err := strconv.Atoi(text[i+1:])
	if err != nil {
		return text, 0
	}
	return text[:i], n
}
