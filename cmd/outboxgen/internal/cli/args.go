package cli

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// explainArgs makes the commands below c say what they take when they get other arguments.
func explainArgs(c *cobra.Command) {
	for _, sub := range c.Commands() {
		explainArgs(sub)
	}
	check := c.Args
	if check == nil || c.HasSubCommands() {
		return
	}
	c.Args = func(c *cobra.Command, args []string) error {
		if check(c, args) == nil {
			return nil
		}
		use := strings.TrimSuffix(c.UseLine(), " [flags]")
		if len(args) == 0 {
			return fmt.Errorf("missing argument: use %s", use)
		}
		surplus := args[min(strings.Count(use, " ")-strings.Count(c.CommandPath(), " "), len(args)-1)]
		file := ""
		if inFolder := filepath.Join(surplus, defaultConfig); isFile(inFolder) {
			file = filepath.ToSlash(inFolder)
		} else if slices.ContainsFunc([]string{".yaml", ".yml"}, func(end string) bool {
			return strings.HasSuffix(surplus, end)
		}) {
			file = surplus
		}
		if file != "" && c.Flags().Lookup("config") != nil {
			return fmt.Errorf("unexpected argument %q: use %s --config %s", surplus, c.CommandPath(), file)
		}
		return fmt.Errorf("unexpected argument %q: use %s", surplus, use)
	}
}
