package main

import (
	"context"

	"subjectbroker/cmd/sbctl/internal/ui"
	operatorv1 "subjectbroker/proto/subjectbroker/operator/v1"
)

type metricsCmd struct{}

// Help is the manual of metrics.
func (metricsCmd) Help() string {
	return `What can be counted, in the text format of Prometheus: runs, denials by reason, calls
by subject and server with how long they took, approvals, what policies have spent.
Nothing listens on a port: a timer writes it where the node exporter's textfile
collector looks. Names of subjects and servers are in it, arguments are not.

Examples:
  sbctl metrics
  sbctl metrics > /var/lib/node_exporter/subjectbroker.prom`
}

// metricsView is the JSON shape of the text.
type metricsView struct {
	Text string `json:"text"`
}

// Run prints the metrics.
func (metricsCmd) Run(ctx context.Context, a *app) error {
	const doing = "asking for metrics"
	got, err := call(ctx, a, doing, &operatorv1.MetricsRequest{}, operatorv1.OperatorServiceClient.Metrics)
	if err != nil {
		return err
	}
	if a.out.Format == ui.JSON {
		return a.out.Object(ui.Object{Value: metricsView{string(got.GetText())}})
	}
	_, err = a.stdout.Write(got.GetText())
	return fail(err, doing)
}
