package cli

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestVersionTellsTheBuild: a release, a build from a checkout, and a module that is replaced by a folder.
func TestVersionTellsTheBuild(t *testing.T) {
	t.Parallel()
	settings := []debug.BuildSetting{
		{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"},
		{Key: "vcs.time", Value: "2026-11-21T13:14:15Z"}, {Key: "vcs.modified", Value: "true"},
	}
	for want, info := range map[string]*debug.BuildInfo{
		"outboxgen v0.1.0 go1.26 linux/amd64": {Main: debug.Module{Version: "v0.1.0"}},
		"outboxgen (devel) (commit 0123456789ab of 2026-11-21T13:14:15Z, modified) go1.26 linux/amd64": {Main: debug.Module{Version: "(devel)"}, Settings: settings},
		"outboxgen (devel) (commit 0123456789ab of 2026-11-21T13:14:15Z) go1.26 linux/amd64":           {Settings: settings[:3]},
		"outboxgen (devel) go1.26 linux/amd64":                                                         {Main: debug.Module{Version: "v0.0.0", Replace: &debug.Module{Path: "../outboxgen"}}},
		"outboxgen v0.2.0 go1.26 linux/amd64":                                                          {Main: debug.Module{Version: "v0.1.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v0.2.0"}}},
	} {
		v := versionInfo{Version: "(devel)", Go: "go1.26", Platform: "linux/amd64"}
		v.read(info)
		require.Equal(t, want, v.String())
	}
}

// TestVersionTellsTheStamp: a binary that was built without git knows its version and its commit, or its version only.
func TestVersionTellsTheStamp(t *testing.T) {
	t.Parallel()
	const commit = "0123456789abcdef0123456789abcdef01234567"
	const at = "2026-11-21T13:14:15Z"
	for stamp, want := range map[string]string{
		"":                            "v0.3.0",
		"v0.1.0":                      "v0.1.0",
		"v0.1.0 " + commit + " " + at: "v0.1.0 (commit 0123456789ab of " + at + ")",
		"(devel) " + commit + " " + at + " modified": "(devel) (commit 0123456789ab of " + at + ", modified)",
	} {
		v := versionInfo{Version: "v0.3.0", Go: "go1.26", Platform: "linux/amd64"}
		v.readStamp(stamp)
		require.Equal(t, "outboxgen "+want+" go1.26 linux/amd64", v.String())
	}
}
