package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWorkflowsHaveNoLogic: the workflows check out, set up Go and Node.js, and call what runs on every machine. A value that
// comes from outside is never a part of a command, but in a variable.
func TestWorkflowsHaveNoLogic(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../.github/workflows/*")
	require.NoError(t, err)
	require.Len(t, files, 4)
	called := make(map[string]bool)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^\s*(?:- )?(run|uses): *(.*)$`).FindAllStringSubmatch(string(text), -1) {
			require.Contains(t, []string{
				"run .ci/run", `run make simulate TIME=30m SEED="$GITHUB_RUN_NUMBER"`, `run make faults TIME=30m SEED="$GITHUB_RUN_NUMBER"`,
				"run make drills", "run make fuzz", `run make mutation SAMPLE=40 SEED="$GITHUB_RUN_NUMBER"`, "run make rehearsal", `run make binaries VERSION="$GITHUB_REF_NAME"`,
				`run make release VERSION="$VERSION"`,
				`run gh release create "$GITHUB_REF_NAME" --verify-tag --title "$GITHUB_REF_NAME" dist/*`,
				"run make test-playground test-site vscode",
				"uses actions/checkout@v4", "uses actions/setup-go@v5", "uses actions/setup-node@v4",
				"uses actions/upload-pages-artifact@v3", "uses actions/deploy-pages@v4",
			}, m[1]+" "+m[2], filepath.Base(file))
			called[m[2]] = true
		}
	}
	require.Len(t, called, 16, "nothing was left out")
}
