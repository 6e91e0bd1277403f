"""The head of an EiNet of images, p(x, y) = m(x) q(y | x): q is a convolutional network."""
