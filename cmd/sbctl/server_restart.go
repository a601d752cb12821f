package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

// counting are the policies that kill over what was counted, which a restart of the
// server does not give back.
var counting = []string{"MaxToolCallsPolicy", "MaxRuntimePolicy", "RateLimitPolicy", "BudgetPolicy"}

// killedProcesses are those of a server that a policy stopped, of one subject unless
// that is empty. Where the daemon does not say there are none.
func (a *app) killedProcesses(ctx context.Context, server, subject string) []*operatorv1.ServerProcess {
	got, err := a.server(ctx, "reading server "+server, server, false)
	if err != nil {
		return nil // restarting says it better
	}
	return slices.DeleteFunc(got.GetServer().GetProcesses(), func(p *operatorv1.ServerProcess) bool {
		return p.GetState() != "killed" || subject != "" && p.GetSubject() != subject
	})
}

// stillCounted says what else is needed after a restart of processes that were killed
// over a limit: the next call would be killed by it again.
func stillCounted(server string, killed []*operatorv1.ServerProcess) []string {
	var lines []string
	for _, p := range killed {
		for _, policy := range counting {
			if strings.Contains(p.GetCause(), policy) {
				lines = append(lines, fmt.Sprintf("%s stopped it for %s, and what was counted stays counted: where that is used up the next call stops it again; sbctl policy reset %s %s begins anew",
					policy, p.GetSubject(), p.GetSubject(), server))
			}
		}
	}
	return lines
}
