package cli

import (
	"cmp"
	"context"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// versionInfo is what version prints.
type versionInfo struct {
	Version  string `json:"version"` // version of the module; "(devel)" for a build from a checkout
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of outboxgen",
		Long:  "version prints the version of the module, the commit that it was built from, the Go and the platform, as outboxgen --version does.",
		Args:  cobra.NoArgs,
		RunE: run(func(context.Context, []string) error {
			return a.printVersion()
		}),
	}
}

func (a *app) printVersion() error {
	v := buildVersion()
	if a.json {
		return a.printJSON(v)
	}
	return a.printf("outboxgen %s %s %s\n", v.Version, v.Go, v.Platform)
}

// buildVersion reads what the linker recorded.
func buildVersion() versionInfo {
	v := versionInfo{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = cmp.Or(info.Main.Version, v.Version)
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
