"""What source, sink and audits share: connection, columns of a log, leader epochs, retries."""
