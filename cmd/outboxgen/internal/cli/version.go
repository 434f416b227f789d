package cli

import (
	"cmp"
	"context"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// versionInfo is what version prints.
type versionInfo struct {
	Version  string `json:"version"`            // version of the module; "(devel)" for a build from a checkout
	Revision string `json:"revision,omitempty"` // commit, of a build from a checkout and of a released binary
	Time     string `json:"time,omitempty"`     // of the commit, RFC 3339
	Modified bool   `json:"modified,omitempty"` // the checkout had changes that were not committed
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// stamp is set by `make binaries` and the Dockerfile, with -ldflags -X. Their builds do not ask git, so that the same
// source gives the same bytes everywhere. It holds up to four words: the version, and of the commit the hash, the
// time, and "modified" if there were changes to it.
var stamp string

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of outboxgen",
		Long: `version prints what outboxgen was built from and with: the version of its module, the Go release and the
platform. For a build from a checkout, and for a binary of a release, it also prints the commit with its time, and
whether files had been modified. outboxgen --version prints the same.`,
		Args: cobra.NoArgs,
		RunE: run(func(context.Context, []string) error {
			return a.printVersion()
		}),
	}
}

func (a *app) printVersion() error {
	v := currentVersion()
	if a.json {
		return a.printJSON(v)
	}
	return a.printf("%s\n", v)
}

func currentVersion() versionInfo {
	v := versionInfo{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		v.read(info)
	}
	v.readStamp(stamp)
	return v
}

// read takes what the linker recorded.
func (v *versionInfo) read(info *debug.BuildInfo) {
	v.Version = cmp.Or(info.Main.Version, v.Version)
	if r := info.Main.Replace; r != nil {
		v.Version = cmp.Or(r.Version, "(devel)") // a folder has no version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
}

// readStamp takes what the stamp has. It is there on purpose, so it counts more than what the linker recorded.
func (v *versionInfo) readStamp(stamp string) {
	words := append(strings.Fields(stamp), "", "", "", "")
	if words[0] == "" {
		return
	}
	v.Version, v.Revision, v.Time, v.Modified = words[0], words[1], words[2], words[3] == "modified"
}

// String returns what version prints without --json.
func (v versionInfo) String() string {
	text := "outboxgen " + v.Version
	if v.Revision != "" {
		text += " (commit " + v.Revision[:min(len(v.Revision), 12)]
		if v.Time != "" {
			text += " of " + v.Time
		}
		if v.Modified {
			text += ", modified"
		}
		text += ")"
	}
	return text + " " + v.Go + " " + v.Platform
}
