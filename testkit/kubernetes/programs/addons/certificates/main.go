// The controllers of cert-manager that make certificates from issuers of a cluster's own.
//
// cert-manager publishes them as a library; the program that it ships is in a module of its own,
// which no module proxy has.
package main

import (
	"context"
	"flag"
	"log"
	"os/signal"
	"syscall"

	"github.com/cert-manager/cert-manager/pkg/controller"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

// How many certificates each controller works at.
const workers = 2

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the file that names the cluster")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *kubeconfig); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, kubeconfig string) error {
	options := controller.ContextOptions{Kubeconfig: kubeconfig}
	options.ClusterResourceNamespace = "kube-system"
	factory, err := controller.NewContextFactory(ctx, options)
	if err != nil {
		return err
	}
	shared, err := factory.Build()
	if err != nil {
		return err
	}
	ended := make(chan error)
	for _, construct := range controller.Known() {
		one, err := construct(factory)
		if err != nil {
			return err
		}
		go func() { ended <- one.Run(workers, ctx) }()
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	for range controller.Known() {
		if err := <-ended; err != nil {
			return err
		}
	}
	return nil
}
