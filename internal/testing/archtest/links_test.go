package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEnqueueLinksNothingMore compares a program that enqueues with one that only begins a transaction: the packages
// that it has more are those of a checked-in list, and the binary grows by at most 270,000 bytes. It grew by 245,760
// when this was written.
func TestEnqueueLinksNothingMore(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	const list = "testdata/enqueue.packages.txt"
	without := linked(t, "./testdata/connect")
	var more strings.Builder
	for _, name := range linked(t, "./testdata/enqueue") {
		if !slices.Contains(without, name) && !strings.HasPrefix(name, module+"internal/testing/archtest/") {
			more.WriteString(name + "\n")
		}
	}
	if *update {
		require.NoError(t, os.WriteFile(list, []byte(more.String()), 0o600))
	}
	want, err := os.ReadFile(list)
	require.NoError(t, err)
	require.Equal(t, string(want), more.String(), "what an enqueue links has changed: see whether a program needs it, and run"+
		" go test ./internal/testing/archtest -run TestEnqueueLinksNothingMore -update")

	const most = 270_000
	grown := sizeOf(t, "./testdata/enqueue") - sizeOf(t, "./testdata/connect")
	t.Logf("an enqueue adds %d bytes to a program", grown)
	require.Greater(t, grown, 0)
	require.LessOrEqual(t, grown, most, "an enqueue adds too much to a program")
}

// linked returns the packages of a program, sorted, without those that only the standard library sees: they differ
// between versions of Go.
func linked(t *testing.T, program string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", program)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	out, err := cmd.Output()
	require.NoError(t, err)
	names := slices.DeleteFunc(strings.Fields(string(out)), func(name string) bool {
		standard := !strings.Contains(strings.Split(name, "/")[0], ".")
		return standard && (strings.HasPrefix(name, "vendor/") || slices.Contains(strings.Split(name, "/"), "internal"))
	})
	slices.Sort(names)
	return names
}

// sizeOf returns the size of a program for Linux on amd64, without its debug information.
func sizeOf(t *testing.T, program string) int {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, program)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	info, err := os.Stat(binary)
	require.NoError(t, err)
	return int(info.Size())
}
