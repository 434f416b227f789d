//go:build unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// left are the drills that `make drills` runs only: they need a package that is not installed, minutes to build, or a load.
var left = []string{"clock.sh", "maintenance.sh", "pgbouncer.sh"}

// noTools is the exit code of a drill on a machine without PostgreSQL's programs.
const noTools = 2

// TestDrills runs the drills with a few orders. Each of them checks what came out.
func TestDrills(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	build(t, "../..", filepath.Join(bin, "outboxgen"), "./cmd/outboxgen")
	build(t, ".", filepath.Join(bin, "drills"), ".")
	scripts, err := filepath.Glob("*.sh")
	require.NoError(t, err)
	scripts = slices.DeleteFunc(scripts, func(name string) bool { return name == "lib.sh" || slices.Contains(left, name) })
	require.Len(t, scripts, 6)
	for _, script := range scripts {
		t.Run(strings.TrimSuffix(script, ".sh"), func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "./"+script)
			cmd.Env = append(os.Environ(), "DRILLS_BIN="+bin, "DRILLS_ORDERS=120")
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.ExitCode() == noTools {
				t.Skip(strings.TrimSpace(string(out)))
			}
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "== The account")
		})
	}
}

func build(t *testing.T, dir, program, pkg string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, pkg)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestEachDrillHasATarget: the Makefile runs each script, and the page has it.
func TestEachDrillHasATarget(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	_, list, _ := strings.Cut(string(makefile), "\nDRILLS := ")
	list, _, _ = strings.Cut(list, "\n")
	page, err := os.ReadFile("../../docs/operate/drills.md")
	require.NoError(t, err)
	scripts, err := filepath.Glob("*.sh")
	require.NoError(t, err)
	var names []string
	for _, script := range scripts {
		if name := strings.TrimSuffix(script, ".sh"); name != "lib" {
			names = append(names, name)
			require.Contains(t, string(page), "`make drill-"+name+"`")
		}
	}
	require.ElementsMatch(t, strings.Fields(list), names)
}
