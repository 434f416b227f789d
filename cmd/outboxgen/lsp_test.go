package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The language server as a process, with the bytes of the protocol. The editor dies: the process ends by itself.
func TestLanguageServerIsAProcess(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "lsp")
	cmd.Args[0] = "outboxgen"
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	send := func(message string) {
		_, err := fmt.Fprintf(stdin, "Content-Length: %d\r\nContent-Type: application/vscode-jsonrpc; charset=utf-8\r\n\r\n%s", len(message), message)
		require.NoError(t, err)
	}
	answers := bufio.NewReader(stdout)
	receive := func(into any) {
		length := 0
		for {
			line, err := answers.ReadString('\n')
			require.NoError(t, err)
			if line = strings.TrimSpace(line); line == "" {
				break
			}
			if value, ok := strings.CutPrefix(line, "Content-Length: "); ok {
				length, err = strconv.Atoi(value)
				require.NoError(t, err)
			}
		}
		body := make([]byte, length)
		_, err := io.ReadFull(answers, body)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(body, into), string(body))
	}

	send(`{"jsonrpc":"2.0","id":"one","method":"initialize","params":{"capabilities":{}}}`)
	var initialized struct {
		ID     string
		Result struct{ Capabilities map[string]any }
	}
	receive(&initialized)
	require.Equal(t, "one", initialized.ID)
	require.Equal(t, true, initialized.Result.Capabilities["hoverProvider"])
	send(`{"jsonrpc":"2.0","method":"initialized","params":{}}`)
	send(`{"jsonrpc":"2.0","method":"textDocument/didOpen","params":{"textDocument":{"uri":"file:///nowhere/outbox.yaml","languageId":"yaml","version":7,"text":"versoin: \"1\"\n"}}}`)
	var diagnostics struct {
		Method string
		Params struct {
			Version     int
			Diagnostics []struct{ Code, Message string }
		}
	}
	receive(&diagnostics)
	require.Equal(t, "textDocument/publishDiagnostics", diagnostics.Method)
	require.Equal(t, 7, diagnostics.Params.Version)
	require.Equal(t, "unknown-key", diagnostics.Params.Diagnostics[0].Code)
	require.Contains(t, diagnostics.Params.Diagnostics[0].Message, `(did you mean "version"?)`)

	require.NoError(t, stdin.Close())
	rest, err := io.ReadAll(answers)
	require.NoError(t, err)
	require.Empty(t, string(rest))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 1, exit.ExitCode())
}
